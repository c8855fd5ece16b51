#!/bin/bash
set -eu
ls inbox | wc -l > count.txt
