#!/bin/bash
set -eu
cat first.txt second.txt > joined.txt
