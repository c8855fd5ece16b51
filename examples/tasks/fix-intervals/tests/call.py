"""Confined: load the module named on the command line, make the calls from stdin, print their results as JSON."""

import importlib.util
import json
import os
import sys

calls = json.load(sys.stdin)
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the module prints is not an answer

spec = importlib.util.spec_from_file_location("under_test", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

found = []
for name, arguments in calls:
    as_tuples = [[tuple(pair) for pair in a] if isinstance(a, list) else a for a in arguments]
    try:
        found.append(getattr(module, name)(*as_tuples))
    except Exception as error:
        found.append({"error": repr(error)})
json.dump(found, answers)
answers.close()
