#!/bin/bash
set -eu
first=$(grep -m1 ' ERROR ' app.log)
service=$(sed 's/.*upstream \([a-z]*\).*/\1/' <<< "$first")
request=$(sed 's/.*req=\([0-9a-f]*\).*/\1/' <<< "$first")
change=$(grep " CHANGE $service " app.log | tail -n 1 | grep -o 'CHG-[0-9]*')
printf 'change: %s\nfirst failed request: %s\n' "$change" "$request" > cause.txt
