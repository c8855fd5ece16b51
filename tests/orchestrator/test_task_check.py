"""`sia task check`: what the oracle, nothing and the known tricks give; each trick wins against a naive test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import task_check
from orchestrator.forgeability import Mark, read_mark
from orchestrator.task_check import Finding, TaskCheck, broken_by_oracle, check_task
from orchestrator.task_files import TaskFiles
from orchestrator.tricks import mentioned
from tests.orchestrator import trial_kit
from tests.orchestrator.test_tasks import make_task
from tests.orchestrator.trial_kit import ONE_MODE, TOP, TrialKit

environments, kit = trial_kit.environments, trial_kit.kit

REWARD = "/logs/verifier/reward.txt"
# What a naive test looks like that each trick wins against.
NAIVE = {
    "planted modules": f"echo 0 > {REWARD}; python3 -c 'import json'",
    "planted commands": f"PATH=$PWD:$PATH; echo 0 > {REWARD}; cmp a b",
    "exit in the module under test": f"""
        if python3 -c 'import sys; sys.path.append("."); import solver; assert solver.run() == 42'
        then echo 1; else echo 0; fi > {REWARD}""",
    "reward-writing daemon": f"python3 solver.py; echo 0 > {REWARD}; sleep 0.2",
    "child that kills its parent": f"""
        python3 - <<'END'
import subprocess
subprocess.run(["python3", "solver.py"])
open("{REWARD}", "w").write("0")
END
        exit 0""",
    "planted git configuration": f"echo 0 > {REWARD}; git init -q . 2>/dev/null; git status >/dev/null",
    "expected output read from the tests": f"""
        if python3 solver.py | cmp -s - /tests/expected.txt; then echo 1; else echo 0; fi > {REWARD}""",
}
SOON = "[verifier]\ntimeout_sec = 5\n"  # a trick that never ends is ended by the verifier's limit
UNSAFE = SOON + "safe_path = false\n"


def check(kit: TrialKit, task: TaskFiles, *, adversarial: bool = True) -> TaskCheck:
    return check_task(kit.host, kit.home, task, kit.tools, kit.home.root / "try", adversarial=adversarial)


@pytest.mark.sandbox
def test_good_task_passes(kit: TrialKit) -> None:
    result = check(kit, kit.task("confine cat answer > /tmp/seen 2>&1\n" + trial_kit.FORTY_TWO))
    print(result)
    assert result.passed and result.forgeable == ()
    assert [finding.name for finding in result.findings] == ["oracle", "nothing", *NAIVE]
    assert read_mark(kit.home, result.key) == Mark(True, ())
    assert not (kit.home.root / "try/layers").exists()


@pytest.mark.sandbox
@pytest.mark.parametrize("trick", NAIVE)
def test_each_trick_wins_against_a_naive_test(kit: TrialKit, trick: str) -> None:
    task = kit.task(
        NAIVE[trick], UNSAFE, {"environment/solver.py": "def run(): return 0\n", "tests/expected.txt": "42\n"}
    )
    result = check(kit, task)
    print(result)
    assert result.forgeable is not None and trick in result.forgeable
    assert not result.passed
    mark = read_mark(kit.home, task.key)
    assert mark is not None and trick in (mark.forgeable or ())


@pytest.mark.sandbox
def test_confined_code_can_not_read_what_is_expected(kit: TrialKit) -> None:
    test = f"if confine python3 solver.py | cmp -s - /tests/expected.txt; then echo 1; else echo 0; fi > {REWARD}"
    files = {
        "environment/solver.py": "print(0)\n",
        "tests/expected.txt": "42\n",
        "solution/solve.sh": "echo 'print(42)' > solver.py\n",
    }
    result = check(kit, kit.task(test, SOON, files))
    print(result)
    assert result.passed and result.forgeable == ()


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("test", "name", "detail"),
    [
        (f"echo 0 > {REWARD}", "oracle", "reward 0"),
        (f"echo 1 > {REWARD}", "nothing", "reward 1"),
        ("exit 0", "nothing", "no reward counts"),
    ],
)
@ONE_MODE
def test_broken_tasks(kit: TrialKit, test: str, name: str, detail: str) -> None:
    result = check(kit, kit.task(test), adversarial=False)
    (finding,) = (finding for finding in result.findings if finding.name == name)
    print(finding)
    assert not finding.passed and detail in finding.detail
    assert read_mark(kit.home, result.key) == Mark(False, None)


@pytest.mark.sandbox
@pytest.mark.bad_input
@ONE_MODE
def test_bad_input_oracle(kit: TrialKit) -> None:
    failing = kit.task(files={"solution/solve.sh": "exit 3\n"})
    finding = check(kit, failing, adversarial=False).findings[0]
    print(finding.detail)
    assert not finding.passed and finding.detail == "ended with exit code 3"
    endless = kit.task(toml="[agent]\ntimeout_sec = 0.3\n", files={"solution/solve.sh": "sleep 100\n"})
    finding = check(kit, endless, adversarial=False).findings[0]
    print(finding.detail)
    assert finding.detail == "went over the limit of seconds"


@pytest.mark.sandbox
@ONE_MODE
def test_one_failure_of_the_oracle_is_not_believed(kit: TrialKit, monkeypatch: pytest.MonkeyPatch) -> None:
    files, outcomes = kit.task(), list[bool]()
    real = task_check._Lab.oracle

    def slow_once(lab: task_check._Lab) -> Finding:
        return real(lab) if outcomes.pop() else Finding("oracle", 1.0, None, False, "went over the limit of seconds")

    monkeypatch.setattr(task_check._Lab, "oracle", slow_once)
    outcomes[:] = [True, False]
    assert broken_by_oracle(kit.host, kit.home, files, kit.tools, kit.directory / "oracle") == ""
    assert outcomes == [] and read_mark(kit.home, files.key) == Mark(True, None)
    other = kit.task("exit 0")
    outcomes[:] = [False, False]
    assert "limit of seconds" in broken_by_oracle(kit.host, kit.home, other, kit.tools, kit.directory / "oracle")
    assert outcomes == [] and read_mark(kit.home, other.key) == Mark(False, None)


@ONE_MODE
def test_names_that_the_tests_mention(kit: TrialKit) -> None:
    test = "python3 /app/tools/run.py < /tests/input.txt; bash ./go.sh; python3 /tests/helper.py; cat ../../x.py"
    files = {"tests/helper.py": "import json\nimport pytest\nfrom solver import run\n"}
    assert mentioned(kit.task(test, files=files)) == ["solver.py", "tools/run.py", "go.sh"]


@pytest.mark.sandbox
def test_command_line(tmp_path: Path, environments: Path) -> None:
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/envs").symlink_to(environments)
    good, bad = make_task(tmp_path / "repo", "good"), make_task(tmp_path / "repo", "bad")
    (bad / "tests/test.sh").write_text(f"echo 1 > {REWARD}\n")
    env = {**os.environ, "SIA_HOME": str(tmp_path / "home"), "PYTHONPATH": str(TOP)}

    def sia(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator", "task", "check", *map(str, words)]
        return subprocess.run(command, cwd=tmp_path / "repo", env=env, capture_output=True, text=True, check=False)

    done = sia(good)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.splitlines() == ["ok     good", "  ok oracle: reward 1", "  ok nothing: reward 0"]
    both = sia(good, bad, "--json")
    assert both.returncode == 1, both
    assert [(found["task"], found["passed"]) for found in json.loads(both.stdout)] == [("good", True), ("bad", False)]
    (bad / "tests/test.sh").unlink()
    refused = sia(bad)
    print(refused.stderr)
    assert refused.returncode == 78 and "the task has no tests/test.sh" in refused.stderr
    assert sia().returncode == 2
    assert not [path for path in (tmp_path / "home/cache").iterdir() if path.name.startswith("check-")]
