#!/bin/bash
set -eu
bash report.sh | sed -n -e '1s/.* station /station: /p' -e '$p' > report.txt
