"""restart.sh against a command that ends with chosen codes: what is started again, when, and what is not."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "restart.sh"


@pytest.fixture
def supervise(tmp_path: Path):
    """`start(codes…)`: restart.sh over a program that ends with these codes, one start after the other, then 0."""
    started: list[subprocess.Popen[str]] = []
    program = tmp_path / "sia"
    program.write_text(
        "#!/bin/sh\n"
        f'cd "{tmp_path}" || exit 99\n'
        'echo "$(date +%s.%N) $*" >> starts\n'
        "code=$(head -n 1 codes); sed -i 1d codes\n"
        '[ "$code" = sleep ] && { trap "echo term >> signals; exit 0" TERM INT; while :; do sleep 0.05; done; }\n'
        '[ "$code" = kill ] && kill -9 $$\n'
        "exit ${code:-0}\n"
    )
    program.chmod(0o755)

    def start(*codes: object, arguments: tuple[str, ...] = (), **env: str) -> subprocess.Popen[str]:
        (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes))
        (tmp_path / "starts").write_text("")
        process = subprocess.Popen(
            ["sh", str(SCRIPT), *arguments],
            env={**os.environ, "SIA": str(program), "SIA_PAUSE": "0", **env},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stderr.close()


def starts(tmp_path: Path) -> list[str]:
    return (tmp_path / "starts").read_text().splitlines()


@pytest.mark.spec("33")
def test_zero_stops(supervise, tmp_path: Path) -> None:
    assert supervise(0).wait(10) == 0
    assert len(starts(tmp_path)) == 1


@pytest.mark.spec("33")
def test_42_starts_again_at_once_and_arguments_are_passed_on(supervise, tmp_path: Path) -> None:
    began = time.monotonic()
    assert supervise(42, 42, 42, 0, arguments=("--engine", "my engine"), SIA_PAUSE="30").wait(10) == 0
    assert time.monotonic() - began < 5
    assert len(starts(tmp_path)) == 4
    assert all(line.endswith("supervise --engine my engine") for line in starts(tmp_path))


@pytest.mark.parametrize("code", [2, 78, 130])
def test_what_a_restart_does_not_heal_is_not_restarted(supervise, tmp_path: Path, code: int) -> None:
    assert supervise(code).wait(10) == code
    assert len(starts(tmp_path)) == 1


def test_crashes_are_counted_and_started_again(supervise, tmp_path: Path) -> None:
    process = supervise(1, "kill", 3, 0)
    assert process.wait(20) == 0
    text = process.stderr.read()
    assert "code 1, failure 1 in a row" in text
    assert "code 137, failure 2 in a row" in text
    assert "code 3, failure 3 in a row" in text
    assert len(starts(tmp_path)) == 4


@pytest.mark.spec("33")
def test_the_pause_doubles_up_to_a_cap(supervise, tmp_path: Path) -> None:
    process = supervise(1, 1, 1, 0, SIA_PAUSE="1", SIA_PAUSE_CAP="1")
    assert process.wait(30) == 0
    times = [float(line.split()[0]) for line in starts(tmp_path)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(0.9 < gap < 2.5 for gap in gaps), gaps


def test_a_run_of_no_seconds_is_no_steady_run(supervise) -> None:
    """Public fault: zero start seconds reset the counter at every crash, so it never grew."""
    process = supervise(1, 1, 0)
    process.wait(10)
    assert "failure 2 in a row" in process.stderr.read()


def test_a_steady_run_resets_the_counter(supervise) -> None:
    process = supervise(1, 1, 0, SIA_STEADY="0")
    process.wait(10)
    text = process.stderr.read()
    assert "failure 1 in a row" in text
    assert "failure 2 in a row" not in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_stop_the_supervisor_and_then_the_script(supervise, tmp_path: Path, number: int) -> None:
    process = supervise("sleep")
    while not starts(tmp_path):
        time.sleep(0.02)
    time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(10) == 0
    assert (tmp_path / "signals").read_text() == "term\n"
    assert len(starts(tmp_path)) == 1


def test_a_signal_during_the_pause_stops_it(supervise) -> None:
    process = supervise(1, SIA_PAUSE="60")
    assert "again in 60 s" in process.stderr.readline()
    time.sleep(0.1)
    process.terminate()
    assert process.wait(10) == 1


@pytest.mark.bad_input
def test_bad_input_no_such_command() -> None:
    env = {**os.environ, "SIA": "/no/such/sia"}
    done = subprocess.run(["sh", str(SCRIPT)], env=env, capture_output=True, text=True, timeout=10, check=False)
    print(done.stderr)
    assert done.returncode == 78
    assert "/no/such/sia: no such command" in done.stderr and "fix:" in done.stderr
