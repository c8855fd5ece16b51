#!/bin/bash
# Watches the gauge for ever. It needs no argument and takes no break.
echo "monitor of gauge $((0x2b * 19))"
for ((i = 1; i <= 40; i++)); do
    echo "warming up, step $i of 40, please wait"
done
echo "calibrated, offset $((7 * 191 - 40)) micrometres"
while true; do
    echo "height $((RANDOM % 500)) millimetres"
    sleep 0.1
done
