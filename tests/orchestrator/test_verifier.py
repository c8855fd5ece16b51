"""The verifier: what counts as a reward, and what code under test can't do about it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from orchestrator.captured import Stopped
from orchestrator.forgeability import Mark, write_mark
from orchestrator.task_files import TaskFiles
from orchestrator.verifier import Reward, verifier_spec, verify
from sandbox.spec import Bind, Limits, Overlay
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import ONE_MODE, TrialKit

environments, kit = trial_kit.environments, trial_kit.kit
pytestmark = pytest.mark.sandbox


def reward_of(kit: TrialKit, task: TaskFiles, files: dict[str, str] | None = None, **options: object) -> Reward:
    """The reward for an instance that left `files` in the workdir."""
    scratch = kit.home.root / "scratch"
    scratch.mkdir(exist_ok=True)
    upper, _ = kit.host.make_upper(kit.home.root / "uppers", str(time.monotonic_ns()))
    for name, content in (files or {}).items():
        (upper / name).parent.mkdir(parents=True, exist_ok=True)
        (upper / name).write_text(content)
        (upper / name).chmod(0o755)
    kit.host.own(upper)
    stdout = kit.directory / "stdout.txt"
    stdout.write_text("what it printed\n")
    return verify(kit.host, kit.home, task, {"/app": upper}, stdout, kit.tools, scratch, **options)  # type: ignore[arg-type]


@ONE_MODE
def test_spec_is_pure_and_complete(kit: TrialKit) -> None:
    task = kit.task(
        toml="[verifier]\ntimeout_sec = 7\n[environment]\nmemory_mb = 300\nenv = { A = 'b', PATH = '/app' }\n"
    )
    overlay = Overlay("/app", (Path("/l"),), Path("/u"), Path("/w"))
    spec = verifier_spec(task, (overlay,), Path("/out"), kit.tools)
    assert spec == verifier_spec(task, (overlay,), Path("/out"), kit.tools)
    assert (spec.command, spec.workdir, spec.network) == (("/bin/bash", "/tests/test.sh"), "/app", "none")
    assert spec.env == {
        "A": "b",
        "PATH": "/opt/verifier/tools:/opt/verifier/env/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/home/agent",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
    }
    assert spec.binds == (
        Bind(task.tests, "/tests"),
        Bind(Path("/out"), "/logs/agent/stdout.txt"),
        Bind(kit.tools.tools, "/opt/verifier/tools"),
        Bind(kit.tools.environment, "/opt/verifier/env"),
    )
    assert spec.limits == Limits(seconds=7.0, memory_mb=300)


def test_reward_and_what_tests_can_see(kit: TrialKit) -> None:
    test = """
    set -e
    [ "$PWD" = /app ] && [ "$(cat answer)" = 42 ] && [ "$(cat start.txt)" = start ]
    [ "$(cat /logs/agent/stdout.txt)" = "what it printed" ]
    if touch /tests/x 2>/dev/null; then exit 1; fi
    [ ! -e /root/sia ] && [ ! -e /root/data ] && [ ! -e /opt/agent-env ] && [ ! -e /run/sia ]
    [ "$(command -v python3)" = /opt/verifier/env/bin/python3 ]
    [ "$(command -v pytest)" = /opt/verifier/tools/pytest ]
    python3 -c 'import pytest, os; assert os.getuid() == 1000'
    printf 'def test_it():\\n    assert open("/app/answer").read() == "42"\\n' > /tmp/test_it.py
    pytest -q /tmp/test_it.py
    touch /app/new
    echo 0.5 > /logs/verifier/reward.txt
    """
    reward = reward_of(kit, kit.task(test), {"answer": "42"})
    assert (reward.value, reward.outcome, reward.detail, reward.forgeable) == (0.5, "ok", "", None), (
        reward.detail,
        _output(kit),
    )


def _output(kit: TrialKit) -> str:
    return (kit.home.root / "scratch/verifier.txt").read_text()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("exit 0", "no /logs/verifier/reward.txt or reward.json was written (test.sh exited with 0)"),
        (": > /logs/verifier/reward.txt", "reward.txt is empty"),
        ("echo nan > /logs/verifier/reward.txt", "instead of one number"),
        ("echo 1 1 > /logs/verifier/reward.txt", "instead of one number"),
        ("echo 1e309 > /logs/verifier/reward.txt", "not from 0 to 1"),
        (r"printf '\377\376' > /logs/verifier/reward.txt", "not UTF-8"),
        ("echo 1 > /logs/verifier/reward.txt; kill -9 $$", "ended by signal 9"),
        ("echo 1 > /logs/verifier/reward.txt; (kill -9 -1); sleep 1", "ended by signal 9"),
        ("ln -s /etc/passwd /logs/verifier/reward.txt", "can't be read"),
        ("mkfifo /logs/verifier/reward.txt", "can't be read"),
        ("mkdir /logs/verifier/reward.txt", "can't be read"),
    ],
)
@ONE_MODE
def test_bad_input_reward(kit: TrialKit, test: str, expected: str) -> None:
    reward = reward_of(kit, kit.task(test))
    print(reward.detail)
    assert (reward.value, reward.outcome) == (0.0, "failed")
    assert expected in reward.detail


@pytest.mark.bad_input
def test_bad_input_verifier_never_ends(kit: TrialKit) -> None:
    task = kit.task("echo 1 > /logs/verifier/reward.txt; sleep 1000", "[verifier]\ntimeout_sec = 0.3\n")
    begun = time.monotonic()
    reward = reward_of(kit, task)
    print(reward.detail)
    assert reward.value == 0.0 and "did not end within 0.3 s" in reward.detail
    assert time.monotonic() - begun < 10


@ONE_MODE
def test_second_try_counts(kit: TrialKit) -> None:
    """A verifier that crashes once is run again on the same files; only twice in a row gives 0."""
    test = "if [ $(( $(date +%s%N) % 2 )) = 0 ]; then kill -9 $$; fi; echo 1 > /logs/verifier/reward.txt"
    task = kit.task(test)
    rewards = {reward_of(kit, task).value for _ in range(8)}
    assert 1.0 in rewards


@ONE_MODE
def test_output_is_capped(kit: TrialKit) -> None:
    reward = reward_of(kit, kit.task("head -c 5000000 /dev/zero; echo 1 > /logs/verifier/reward.txt"))
    assert reward.value == 1.0
    assert (kit.home.root / "scratch/verifier.txt").stat().st_size < 300_000


@pytest.mark.parametrize(
    "payload",
    [
        "echo 1 > /logs/verifier/reward.txt",
        "(setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' &) 2>/dev/null",
        "kill -9 $PPID",
    ],
)
def test_confined_code_cannot_write_the_reward(kit: TrialKit, payload: str) -> None:
    test = "confine bash ./code.sh 2>/dev/null; sleep 0.1; echo 0 > /logs/verifier/reward.txt; sleep 0.1"
    assert reward_of(kit, kit.task(test), {"code.sh": payload}).value == 0.0


def test_planted_modules_are_not_imported(kit: TrialKit) -> None:
    evil = "import os\nopen('/logs/verifier/reward.txt','w').write('1')\nos._exit(0)\n"
    test = (
        "python3 -m pytest --version >/dev/null 2>&1 && python3 -c 'import json' && echo 0 > /logs/verifier/reward.txt"
    )
    planted = {f"{name}.py": evil for name in ("pytest", "json", "sitecustomize", "usercustomize", "conftest")}
    reward = reward_of(kit, kit.task(test), planted)
    assert (reward.value, reward.outcome) == (0.0, "ok"), _output(kit)
    unsafe = kit.task(test, "[verifier]\nsafe_path = false\n")
    assert reward_of(kit, unsafe, planted).forgeable


def test_files_that_nobody_may_read_count_against_the_instance(kit: TrialKit) -> None:
    upper, _ = kit.host.make_upper(kit.home.root / "uppers", "broken")
    (upper / "start.txt").mkdir(mode=0)
    upper.chmod(0)
    stdout = kit.directory / "stdout.txt"
    stdout.write_bytes(b"")
    (kit.home.root / "scratch").mkdir()
    task = kit.task()
    reward = verify(kit.host, kit.home, task, {"/app": upper}, stdout, kit.tools, kit.home.root / "scratch")
    print(reward)
    assert reward.value == 0.0


def test_our_own_failure_is_invalid(kit: TrialKit) -> None:
    """If the verifier can't be set up over the untouched files either, the instance is not to blame."""
    task = kit.task()
    (task.tests / "test.sh").rename(task.tests / "gone")
    task.tests.rename(task.tests.with_name("moved"))
    reward = reward_of(kit, task)
    print(reward.detail)
    assert (reward.value, reward.outcome) == (None, "invalid")


@ONE_MODE
def test_forgeable_mark_is_reported(kit: TrialKit) -> None:
    task = kit.task()
    assert reward_of(kit, task, {"answer": "42"}).forgeable is None
    write_mark(kit.home, task.key, Mark(True, None))  # a check without tricks says nothing of them
    assert reward_of(kit, task, {"answer": "42"}).forgeable is None
    write_mark(kit.home, task.key, Mark(True, ()))
    assert reward_of(kit, task, {"answer": "42"}).forgeable is False
    write_mark(kit.home, task.key, Mark(True, ("planted modules",)))
    write_mark(kit.home, task.key, Mark(True, None))  # a check without tricks does not clear it
    assert reward_of(kit, task, {"answer": "42"}).forgeable


def test_stop_ends_it_at_once(kit: TrialKit) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    begun = time.monotonic()
    with pytest.raises(Stopped):
        reward_of(kit, kit.task("sleep 100"), stop=stop)
    assert time.monotonic() - begun < 5
