#!/bin/bash
set -eu
wc -l < notes.txt > count.txt
