#!/bin/bash
set -eu
echo hello > greeting.txt
