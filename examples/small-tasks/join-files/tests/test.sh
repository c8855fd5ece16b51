#!/bin/bash
# The reward is written here, after everything that was started has ended.
score=$(python3 -I /tests/check.py) || score=0
echo "${score:-0}" > /logs/verifier/reward.txt
