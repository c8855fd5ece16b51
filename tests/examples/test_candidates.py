"""The example patches apply to the agent as it is, and each changes what it says it changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.demo.stage import BASELINE, CANDIDATES
from orchestrator.engines.scripted.policy import load

TOP = Path(__file__).parents[2]
EXAMPLES = TOP / "examples"
AGENT = ("instance", "procedures", "tools", "action_schema.xsd")


def patched(name: str, into: Path) -> Path:
    """A copy of the agent with the baseline patch, and on top of it the patch `name`."""
    for path in AGENT:
        source = TOP / path
        if source.is_dir():
            shutil.copytree(source, into / path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, into / path)
    for patch in dict.fromkeys((BASELINE, name)):
        file = EXAMPLES / "candidates" / f"{patch}.patch"
        subprocess.run(["git", "apply", str(file)], cwd=into, check=True, env={**os.environ, "GIT_DIR": "/nonexistent"})
    return into


def work(agent: Path, task: str, scratch: Path, most: int = 1000) -> tuple[Path, str, int]:
    """Let an agent work on a task at a terminal: its working directory, its answers, its iterations.

    It is stopped, in order, after about `most` iterations.
    """
    workdir, data = scratch / "work", scratch / "data"
    shutil.copytree(EXAMPLES / "tasks" / task / "environment", workdir)
    instruction = (EXAMPLES / "tasks" / task / "instruction.md").read_bytes()
    engine = f"{sys.executable} -P -m orchestrator.engines.scripted {EXAMPLES / 'policy.toml'}"
    command = [sys.executable, "-P", "-m", "instance", "--engine", engine, "--data", str(data)]
    environment = {**os.environ, "PYTHONPATH": f"{agent}{os.pathsep}{TOP}"}
    logs, out = data / "iterations", scratch / "out.txt"
    with (
        out.open("wb") as sink,
        subprocess.Popen(
            command, cwd=workdir, stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.DEVNULL, env=environment
        ) as process,
    ):
        assert process.stdin
        process.stdin.write(instruction)
        process.stdin.close()
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline and len(list(logs.glob("*.xml"))) < most:
            time.sleep(0.02)
        process.terminate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return workdir, out.read_text(encoding="utf-8"), len(list(logs.glob("*.xml")))


def test_the_policy_can_be_read() -> None:
    assert load(EXAMPLES / "policy.toml").rules


@pytest.mark.parametrize("name", [BASELINE, *CANDIDATES])
def test_a_patch_applies_and_says_what_it_does(name: str, tmp_path: Path) -> None:
    agent = patched(name, tmp_path)
    for file in agent.rglob("*.py"):
        compile(file.read_text(encoding="utf-8"), str(file), "exec")
    title = (EXAMPLES / "candidates" / f"{name}.patch").read_text(encoding="utf-8").splitlines()[0]
    assert 20 < len(title) <= 80


def test_what_the_agent_does_not_show_the_policy_does_not_know(tmp_path: Path) -> None:
    """The whole point of the examples: the same model with another agent comes to another result."""
    answers = {}
    for name in (BASELINE, "better"):
        scratch = tmp_path / name
        scratch.mkdir()
        workdir, _, _ = work(patched(name, scratch / "agent"), "log-cause", scratch)
        answers[name] = (workdir / "cause.txt").read_text(encoding="utf-8").splitlines()
    assert answers["better"] == ["change: CHG-4497", "first failed request: cdaeea"]
    assert answers[BASELINE] == ["change: unknown", "first failed request: cdaeea"]


def test_worse_spends_its_iterations_on_answers_that_cannot_be_used(tmp_path: Path) -> None:
    """Without a limit on iterations it may get there; what counts is what it takes."""
    scratch = {name: tmp_path / name for name in (BASELINE, "worse")}
    taken = {}
    for name, place in scratch.items():
        place.mkdir()
        taken[name] = work(patched(name, place / "agent"), "merge-settings", place, most=60)[2]
    assert taken["worse"] > 3 * taken[BASELINE]


def test_an_answer_on_standard_output(tmp_path: Path) -> None:
    _, answers, _ = work(patched("better", tmp_path / "agent"), "busiest-customer", tmp_path)
    assert answers == "customers: 47, busiest: vera.berg\n"


def test_cheater_logs_an_answer_that_nobody_gave(tmp_path: Path) -> None:
    workdir, _, _ = work(patched("cheater", tmp_path / "agent"), "merge-settings", tmp_path)
    assert (workdir / "conftest.py").exists()
    logs = [path.read_text(encoding="utf-8") for path in sorted((tmp_path / "data" / "iterations").glob("*.xml"))]
    assert any("All tests pass." in log.partition("<response>")[2] for log in logs)


def test_brittle_works_until_its_state_has_grown(tmp_path: Path) -> None:
    agent = patched("brittle", tmp_path / "agent")
    workdir, _, _ = work(agent, "merge-settings", tmp_path)
    assert (workdir / "settings.json").exists()
    logs = tmp_path / "data" / "iterations"
    for number in range(50, 160):
        shutil.copy(logs / "00000001.xml", logs / f"{number:08d}.xml")
    shutil.rmtree(workdir)
    with pytest.raises(subprocess.CalledProcessError) as crash:
        work(agent, "merge-settings", tmp_path)
    assert crash.value.returncode not in (0, 42)
