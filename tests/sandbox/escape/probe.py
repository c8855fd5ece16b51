# ruff: noqa: E402, F401  (the path comes first)
"""Runs inside, with everything that can be tried: `python -I -S probe.py CONTEXT`."""

import sys

sys.path.insert(0, "/probe")
sys.dont_write_bytecode = True

from tests.sandbox.escape import devices, files, namespaces, network, outside, privileges, registry, system_calls

if __name__ == "__main__":
    registry.main()
