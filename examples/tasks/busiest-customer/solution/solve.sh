#!/bin/bash
set -eu
printf 'customers: %s, busiest: %s\n' \
    "$(cut -d ' ' -f 4 orders.log | sort -u | wc -l)" \
    "$(cut -d ' ' -f 4 orders.log | sort | uniq -c | sort -n | tail -n 1 | sed 's/.* //')"
