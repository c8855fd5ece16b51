#!/usr/bin/env python3
"""Show one iteration of the agent's own log.

usage: show_iteration.py [--logs DIRECTORY] [--context] NUMBER

NUMBER counts from 1; a negative one counts from the end (-1 = the last). Shows the raw answer; with --context, the
context it answered as well.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import unescape

LOGS = "/root/data/iterations"
_LOG = re.compile(
    r"<iteration [^>]*>\n<context>\n(.*)\n</context>\n<response>(.*)</response>\n</iteration>\s*", re.DOTALL
)


def find(directory: Path, number: int) -> Path:
    """The file of an iteration. Raises LookupError with the numbers that exist."""
    numbers = sorted(int(path.stem) for path in directory.glob("*.xml") if path.stem.isdecimal())
    if number < 0 and -number <= len(numbers):
        number = numbers[number]
    if number not in numbers:
        known = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise LookupError(f"there is no log of iteration {number} in {directory}; known: {known}")
    return directory / f"{number:08d}.xml"


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, 1 not found, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="show_iteration.py", usage="show_iteration.py [--logs DIR] [--context] NUMBER"
    )
    parser.add_argument("number", type=int)
    parser.add_argument("--context", action="store_true", help="the context too")
    parser.add_argument("--logs", type=Path, default=Path(LOGS))
    options = parser.parse_args(arguments)
    try:
        path = find(options.logs, options.number)
        match = _LOG.fullmatch(path.read_text(encoding="utf-8"))
        if match is None:
            raise LookupError(f"{path} is not a whole iteration log")
    except (LookupError, OSError) as error:
        print(f"show_iteration.py: {error}", file=sys.stderr)
        return 1
    if options.context:
        print(match[1])
    print(f"--- answer of iteration {int(path.stem)} ---")
    print(unescape(match[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
