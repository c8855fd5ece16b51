"""`sia gc`: what nothing refers to any more, and its removal."""

from __future__ import annotations

import json
import sys
from typing import Annotated

from cyclopts import Parameter

from orchestrator import garbage
from orchestrator.config import load_settings
from orchestrator.errors import UsageError
from orchestrator.home import open_home
from orchestrator.untrusted import one_line

UNITS = ("B", "kB", "MB", "GB", "TB")


def collect(
    *,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    keep: int = garbage.KEEP_CAMPAIGNS,
    min_age: float = garbage.MIN_AGE_HOURS,
    evidence: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Remove exports, environments, bundles and data that nothing refers to any more, and say how many bytes.

    Whatever a generation, an open promotion, an unfinished campaign or one of the newest campaigns names stays, and so
    does what is in use; it can run beside a supervisor and campaigns. Everything that it removes by default can be made
    again. What verdicts rest on is only touched with `--evidence`.

    Parameters
    ----------
    dry_run
        Only say what would be removed.
    keep
        How many of the newest campaigns keep their exports, bundles and environments, and what `--evidence` removes.
        Copies of task files go once a campaign is finished.
    min_age
        Hours; what was made later than that stays.
    evidence
        Also remove what campaigns beyond `--keep` rest on, unless a generation rests on the campaign: contexts and
        answers, output, the agents' own logs. Their verdicts, records and chains of hashes stay.
    as_json
        Print the list as JSON.
    """
    if keep < 0 or not min_age >= 0:
        name, value = ("--keep", keep) if keep < 0 else ("--min-age", min_age)
        raise UsageError(f"{name} {value}: at least 0", fix="leave it out for the default")
    home = open_home()
    rules = garbage.Rules(keep, min_age * 3600, evidence)
    done = garbage.collect(home, load_settings(home.checkout), rules, dry_run=dry_run)
    if as_json:
        items = [{"kind": item.kind, "path": str(item.path), "bytes": item.bytes} for item in done.items]
        print(json.dumps({"dry_run": dry_run, "bytes": done.bytes, "items": items, "left": done.left}, indent=2))
        return 0
    for item in sorted(done.items, key=lambda item: -item.bytes):
        print(f"{_size(item.bytes):>9}  {item.kind:<11}  {one_line(str(item.path), 300)}")
    verb = "would be removed" if dry_run else "removed"
    print(f"{_size(done.bytes):>9}  {verb} in all ({len(done.items)})" if done.items else "nothing to remove")
    for text in done.left:
        print(f"left: {one_line(text, 300)}", file=sys.stderr)
    return 0


def _size(count: float) -> str:
    for unit in UNITS:
        if count < 1000 or unit == UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
