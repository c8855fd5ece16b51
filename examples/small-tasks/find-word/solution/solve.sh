#!/bin/bash
set -eu
grep -l lighthouse letters/* | xargs basename > found.txt
