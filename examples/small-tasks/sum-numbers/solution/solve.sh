#!/bin/bash
set -eu
awk '{ sum += $1 } END { print sum }' numbers.txt > total.txt
