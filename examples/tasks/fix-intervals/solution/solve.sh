#!/bin/bash
set -eu
sed -i 's/start < merged\[-1\]\[1\]/start <= merged[-1][1]/' intervals.py
sed -i 's/^    return \[(max(a, start)/    if here < end:\n        free.append((here, end))\n&/' intervals.py
