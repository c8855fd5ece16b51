#!/usr/bin/env python3
"""Search the agent's own iteration logs, newest first.

usage: search_logs.py [--in response|context|both] [--max N] [--logs DIRECTORY] PATTERN

PATTERN is a regular expression, compared without regard to case. For each iteration that matches: its number and the
first lines that match. Default: responses only, 20 iterations, /root/data/iterations.
"""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

LOGS = "/root/data/iterations"
_LINES = 3  # lines shown of one iteration
_WIDTH = 200  # characters shown of one line


def logs(directory: Path) -> list[Path]:
    """The log files, newest first."""
    return sorted((path for path in directory.glob("*.xml") if path.stem.isdecimal()), reverse=True)


def parts(path: Path) -> dict[str, str]:
    """The texts of one log: `context` (as XML) and `response`."""
    root = ET.parse(path).getroot()
    context = root.find("context")
    inside = "".join(ET.tostring(child, encoding="unicode") for child in context) if context is not None else ""
    return {"context": inside, "response": root.findtext("response", "")}


def search(directory: Path, pattern: re.Pattern[str], where: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Number and matching lines of each iteration that matches."""
    for path in logs(directory):
        try:
            texts = parts(path)
        except (OSError, ET.ParseError) as error:
            print(f"{path.name}: can't be read ({error})", file=sys.stderr)
            continue
        lines = [line.strip() for name in where for line in texts[name].splitlines() if pattern.search(line)]
        if lines:
            yield int(path.stem), lines


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 found, 1 nothing found, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="search_logs.py", description=__doc__, formatter_class=_Plain)
    parser.add_argument("pattern")
    parser.add_argument("--in", dest="where", choices=("response", "context", "both"), default="response")
    parser.add_argument("--max", type=int, default=20)
    parser.add_argument("--logs", type=Path, default=Path(LOGS))
    options = parser.parse_args(arguments)
    try:
        pattern = re.compile(options.pattern, re.IGNORECASE)
    except re.error as error:
        parser.error(f"PATTERN is not a regular expression: {error}")
    if not options.logs.is_dir():
        parser.error(f"there is no directory {options.logs}")
    where = ("context", "response") if options.where == "both" else (options.where,)
    found = 0
    for number, lines in search(options.logs, pattern, where):
        if found == options.max:
            print(f"… more than {options.max} iterations match; raise --max or search for something rarer")
            break
        found += 1
        print(f"iteration {number}:")
        for line in lines[:_LINES]:
            print(f"  {line[:_WIDTH]}")
        if len(lines) > _LINES:
            print(f"  … {len(lines) - _LINES} more lines")
    if not found:
        print("no iteration matches", file=sys.stderr)
    return 0 if found else 1


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the help text."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
