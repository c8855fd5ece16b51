#!/bin/bash
set -eu
LC_ALL=C sort names.txt > sorted.txt
