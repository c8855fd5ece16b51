#!/bin/bash
set -eu
export GIT_DIR=harbour.git
rm -f harbour.git/refs/heads/main.lock harbour.git/refs/heads/main
git symbolic-ref HEAD refs/heads/main
git update-ref refs/heads/main "$(tail -n 1 harbour.git/logs/refs/heads/main | cut -d ' ' -f 2)"
