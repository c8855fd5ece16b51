"""`sia sandbox diff`: what an upper layer changed; and how changes are shown."""

from __future__ import annotations

import dataclasses
import itertools
import json as jsonlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import Parameter

from orchestrator.errors import UsageError
from orchestrator.untrusted import printable
from sandbox.diff import Change, diff

RECORD = "sandbox.json"  # in a directory that `sia sandbox run --keep` left
LISTED = 200  # changes shown to a person
SIGNS = {"added": "+", "modified": "M", "deleted": "-", "type": "T", "mode": "m", "xattr": "x"}


def diff_command(
    upper: Path,
    *,
    lower: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """List what UPPER changed against the layers below it. Reads only, and follows no link in what it reads.

    `+` added, `M` content, `-` deleted, `T` another type, `m` mode, `x` extended attributes; several where several
    changed. The exit code is 0 whether or not there are changes.

    Parameters
    ----------
    upper
        The upper directory of an overlay whose sandbox has ended; or a directory that `sia sandbox run --keep` left,
        which knows its lower layers.
    lower
        A layer below it, the lowest first. May be given several times. Default: nothing lies below.
    json
        Print one JSON object per change and line, all of them.
    """
    directory, lowers = _layers(upper, lower)
    changes = diff(lowers, directory)
    if json:
        for change in changes:
            print(jsonlib.dumps(dataclasses.asdict(change)))
    else:
        show(changes, sys.stdout, None)
    return 0


def _layers(upper: Path, lower: tuple[Path, ...]) -> tuple[Path, tuple[Path, ...]]:
    record = upper / RECORD
    if not lower and record.is_file() and (upper / "upper").is_dir():
        try:
            known = tuple(Path(str(name)) for name in jsonlib.loads(record.read_text())["lowers"])
        except (ValueError, KeyError, TypeError, OSError):
            fix = "name the layers: sia sandbox diff DIR/upper --lower DIR"
            raise UsageError("is damaged", where=str(record), fix=fix) from None
        upper, lower = upper / "upper", known
    for directory in (upper, *lower):
        if not directory.is_dir():
            raise UsageError("there is no such directory", where=str(directory))
    return upper, lower


def show(changes: Iterable[Change], stream: TextIO, listed: int | None = LISTED) -> None:
    """One line per change; of more than `listed`, their number."""
    rest = iter(changes)
    for change in itertools.islice(rest, listed):
        signs = "".join(SIGNS[kind] for kind in (change.kind, *change.also))
        print(f"{signs} {printable(change.path)}{'/' if change.is_directory else ''}", file=stream)
    more = sum(1 for _ in rest)
    if more:
        print(f"… and {more} more changes (all of them with --json)", file=stream)
