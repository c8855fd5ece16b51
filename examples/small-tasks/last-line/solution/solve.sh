#!/bin/bash
set -eu
tail -n 1 log.txt > last.txt
