#!/bin/bash
set -eu
sha256sum -c SHA256SUMS 2>/dev/null | sed -n 's/: FAILED$//p' > damaged.txt
