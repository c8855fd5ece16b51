#!/bin/bash
set -eu
seen=$(timeout 0.5 bash monitor.sh || true)
sed -n -e 's/^monitor of gauge /gauge: /p' -e 's/^calibrated, offset \([0-9]*\) .*/offset: \1/p' <<< "$seen" > gauge.txt
