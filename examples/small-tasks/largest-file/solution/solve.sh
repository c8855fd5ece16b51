#!/bin/bash
set -eu
ls -S data | head -n 1 > largest.txt
