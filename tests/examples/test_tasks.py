"""Every example task passes its own check, the tricks included, as root and as a user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.tasks import load_task
from tests.orchestrator import trial_kit

environments = trial_kit.environments
TOP = Path(__file__).parents[2]
TASKS = sorted((TOP / "examples" / "tasks").iterdir())


def test_there_are_twelve_with_a_clear_end() -> None:
    assert len(TASKS) == 12
    for directory in TASKS:
        task = load_task(directory)
        assert task.instruction.rstrip().endswith("When you are done, stop."), task.name
        assert task.safe_path and not task.notes, task.notes


def test_no_task_is_large() -> None:
    sizes = {task.name: sum(file.stat().st_size for file in task.rglob("*") if file.is_file()) for task in TASKS}
    assert max(sizes.values()) < 2_000_000, sizes


@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["user"], indirect=True)  # the small tasks go through the same as root
def test_all_pass_the_adversarial_check(mode: str, tmp_path: Path, environments: Path) -> None:
    command = [sys.executable, "-P", "-m", "orchestrator", "task", "check", "--adversarial", "--json"]
    (tmp_path / "state").mkdir()
    (tmp_path / "state/envs").symlink_to(environments)
    environment = {**os.environ, "SIA_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [*command, *map(str, TASKS)], cwd=TOP, env=environment, capture_output=True, timeout=380, check=False
    )
    assert done.stdout, done.stderr.decode()
    for task in json.loads(done.stdout):
        failed = [finding for finding in task["findings"] if not finding["passed"]]
        assert not failed, (task["task"], failed)
        assert task["forgeable"] == [], task["task"]
    assert done.returncode == 0
