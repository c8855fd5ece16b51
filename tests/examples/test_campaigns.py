"""Campaigns for real models: the files can be read, the candidates work, here with a scripted engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from instance.transcript import load_examples
from instance.validator import XMLValidator
from orchestrator.config import load_campaign
from orchestrator.tasks import find_tasks
from tests.examples.test_candidates import patched
from tests.orchestrator import trial_kit

environments = trial_kit.environments
TOP = Path(__file__).parents[2]
SMALL = sorted((TOP / "examples" / "small-tasks").iterdir())
POLICY = """
[[rule]]
when = "@stdin > 0 and not(read_stdin[contains(., 'greeting.txt')])"
answer = "<read_stdin/>"
[[rule]]
when = "not(single[contains(., 'greeting.txt')])"
answer = "<single>echo hello > greeting.txt</single>"
[[rule]]
answer = "<stop/>"
"""


def test_the_campaign_can_be_read() -> None:
    campaign = load_campaign(TOP / "examples" / "campaigns" / "renderers.toml")
    assert campaign.candidates == ("transcript",) and len(find_tasks(campaign.tasks, TOP)) == len(SMALL) == 10


def test_the_examples_of_the_candidate_are_valid_answers(tmp_path: Path) -> None:
    agent = patched("transcript", tmp_path)
    turns = load_examples(agent / "procedures" / "examples.xml")
    validator = XMLValidator((agent / "action_schema.xsd").read_text(encoding="utf-8"))
    answers = [turn.text for turn in turns if turn.role == "assistant"]
    assert len(answers) == 8 and [validator.validate(answer) for answer in answers] == [None] * len(answers)
    assert re.search('(?m)^RENDERER = "transcript"', (agent / "instance" / "renderer.py").read_text(encoding="utf-8"))


def test_the_candidate_works_with_turns(tmp_path: Path) -> None:
    agent, workdir = patched("transcript", tmp_path / "agent"), tmp_path / "work"
    workdir.mkdir()
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    engine = f"{sys.executable} -P -m orchestrator.engines.scripted {tmp_path / 'policy.toml'}"
    command = [sys.executable, "-P", "-m", "instance", "--engine", engine, "--data", str(tmp_path / "data")]
    environment = {**os.environ, "PYTHONPATH": f"{agent}{os.pathsep}{TOP}"}
    instruction = (TOP / "examples/small-tasks/write-greeting/instruction.md").read_bytes()
    done = subprocess.run(
        command, cwd=workdir, env=environment, input=instruction, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (workdir / "greeting.txt").read_text(encoding="utf-8") == "hello\n"
    assert len(list((tmp_path / "data" / "iterations").glob("*.xml"))) == 3


@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.timeout(400)
@trial_kit.ONE_MODE
def test_the_small_tasks_pass_the_adversarial_check(mode: str, tmp_path: Path, environments: Path) -> None:
    command = [sys.executable, "-P", "-m", "orchestrator", "task", "check", "--adversarial", "--json"]
    (tmp_path / "state").mkdir()
    (tmp_path / "state/envs").symlink_to(environments)
    environment = {**os.environ, "SIA_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [*command, *map(str, SMALL)], cwd=TOP, env=environment, capture_output=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert [task["forgeable"] for task in json.loads(done.stdout)] == [[]] * len(SMALL)
