#!/bin/bash
set -eu
awk '!/soft/ { print $3, $1 }' needs.txt | tsort > order.txt
