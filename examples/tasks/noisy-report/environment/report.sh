#!/bin/bash
# The nightly report: every reading of every gauge, and at the very end the sum that the books need.
awk 'BEGIN {
    gauge = 17; sum = 0
    print "report of station 4F7A-NORTH"
    for (i = 1; i <= 60000; i++) {
        gauge = (gauge * 7621 + 17) % 32768
        sum = (sum + gauge * i) % 1000003
        print "reading", i, "gauge", i % 12, "height", gauge
    }
    print "books: " sum "-" gauge
}'
