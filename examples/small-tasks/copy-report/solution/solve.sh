#!/bin/bash
set -eu
mkdir backup
cp report.txt backup/
