#!/bin/bash
set -eu
sed -Ei -e 's/[A-Za-z0-9._]+@[a-z.]+/[removed]/g' -e 's/tok_[0-9a-f]+/[removed]/g' -e 's/\+49 [0-9]+ [0-9]+/[removed]/g' tickets/*.txt
