"""`sia task check`."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from orchestrator.cli.options import Json
from orchestrator.environments import verifier_environment
from orchestrator.home import Home, open_home
from orchestrator.verifier import VerifierTools
from sandbox.host import Host

if TYPE_CHECKING:
    from orchestrator.task_check import TaskCheck
    from orchestrator.tasks import Task


def check(
    *directories: Path,
    adversarial: Annotated[bool, Parameter(negative="")] = False,
    json_: Json = False,
) -> int:
    """Check tasks: the oracle gives reward 1, nothing gives 0, and with --adversarial known tricks give 0.

    Parameters
    ----------
    directories
        Task directories (each with a task.toml).
    adversarial
        Also play the known ways to forge a reward; a task where one wins is marked forgeable in every report.
    """
    from orchestrator import rootfs
    from orchestrator.errors import UsageError
    from orchestrator.task_check import check_task
    from orchestrator.task_files import prepare
    from orchestrator.tasks import find_tasks

    if not directories:
        raise UsageError("no task named", fix="sia task check DIR…")
    tasks = find_tasks([str(path.absolute()) for path in directories], Path("/"))
    results = []
    with _laboratory() as (host, home, tools, scratch):
        for task in tasks:
            rootfs.check_verifier(host, task, tools.environment)
            files = prepare(task, host, scratch / "files")
            result = check_task(host, home, files, tools, scratch / "try", adversarial=adversarial)
            results.append(result)
            if not json_:
                _print(task, result)
    if json_:
        print(json.dumps([{**asdict(result), "passed": result.passed} for result in results], indent=2))
    return 0 if all(result.passed for result in results) else 1


@contextmanager
def _laboratory() -> Iterator[tuple[Host, Home, VerifierTools, Path]]:
    """What checks need, in a scratch directory that is gone afterwards."""
    home = open_home()
    home.cache.mkdir(parents=True, exist_ok=True)
    environment = verifier_environment(home)
    scratch = Path(tempfile.mkdtemp(prefix="check-", dir=home.cache))
    scratch.chmod(0o711)
    try:
        with Host.detect(home.root) as host:
            try:
                yield host, home, VerifierTools.prepare(host, home, environment), scratch
            finally:
                host.remove(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _print(task: Task, result: TaskCheck) -> None:
    from orchestrator.untrusted import printable

    print(f"{'ok    ' if result.passed else 'FAILED'} {task.name}")
    for finding in result.findings:
        reward = "none" if finding.reward is None else f"{finding.reward:g}"
        detail = f"  {printable(finding.detail)}" if finding.detail and not finding.passed else ""
        print(f"  {'ok' if finding.passed else '!!'} {finding.name}: reward {reward}{detail}")
    for note in task.notes:
        print(f"  note: {printable(note)}", file=sys.stderr)
