"""`sia doctor`: what this machine can and cannot isolate, and how to fix it."""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from orchestrator import home as homes
from orchestrator.cli.options import Json
from orchestrator.errors import UsageError
from orchestrator.untrusted import printable
from sandbox import doctor as examination

MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


def doctor(*, selftest: Annotated[bool, Parameter(negative="")] = False, json: Json = False) -> int:
    """Examine this machine: every protection is tried in a real sandbox. Exit code 1 if something needed is missing.

    Inside a repository, the state directory (.sia or SIA_HOME) is examined too; else a temporary one.

    Parameters
    ----------
    selftest
        Prove every promise as well: escapes, limits, and killing are tried, which takes a few seconds.
    """
    try:
        return _report(_examine(homes.open_home().run, selftest=selftest), json=json)
    except UsageError:  # not inside a repository
        with tempfile.TemporaryDirectory(prefix="sia-doctor-") as directory:
            Path(directory).chmod(0o711)
            return _report(_examine(Path(directory), selftest=selftest), json=json)


def _examine(state: Path, *, selftest: bool) -> list[examination.Finding]:
    findings = examination.examine(state)
    if not selftest or any(finding.state == "fail" for finding in findings):
        return findings  # without a launch there is nothing to prove
    from sandbox.selftest import selftest as prove

    seen = {finding.detail for finding in findings}
    return findings + [finding for finding in prove(state) if finding.topic == "promise" and finding.detail not in seen]


def _report(findings: list[examination.Finding], *, json: bool) -> int:
    failed = [finding for finding in findings if finding.state == "fail"]
    if json:
        print(jsonlib.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
        return 1 if failed else 0
    for finding in findings:
        print(f"{MARKS[finding.state]}  {finding.topic}: {printable(finding.detail)}")
        if finding.fix and finding.state != "ok":
            print("".join(f"      {line}\n" for line in f"fix: {finding.fix}".splitlines()), end="")
    if failed:
        print("No sandbox will be started here until the failures above are fixed.", file=sys.stderr)
    return 1 if failed else 0
