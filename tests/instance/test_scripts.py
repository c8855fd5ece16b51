"""Scripts end, whatever they do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from instance.scripts import Capture, Script, ScriptRunner, script_environment
from instance.signals import Interrupt


def run(runner: ScriptRunner, text: str, timeout: float = 10.0, limit: int = 20_000):  # type: ignore[no-untyped-def]
    return runner.run([Script(text, timeout, limit)])[0]


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_streams_and_exit_code(runner: ScriptRunner) -> None:
    result = run(runner, "echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert not (result.timed_out or result.truncated or result.interrupted)


@pytest.mark.spec("7")
def test_timeout_kills_the_whole_group(runner: ScriptRunner, tmp_path: Path) -> None:
    begin = time.monotonic()
    result = run(runner, "echo before; sleep 60 & echo $! >child; sleep 60", timeout=1)
    assert time.monotonic() - begin < 30
    assert result.timed_out and result.exit_code == 137 and result.stdout == "before\n"
    pid = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.02)
    assert not alive(pid)


@pytest.mark.spec("7")
def test_a_background_child_that_holds_the_pipes_does_not_hang(runner: ScriptRunner, tmp_path: Path) -> None:
    result = run(runner, "(for i in 1 2 3 4 5 6 7 8; do sleep 0.25; echo tick; done; echo end >done) & echo started")
    assert not (tmp_path / "done").exists(), "waited for the child"
    assert result.stdout.startswith("started") and result.exit_code == 0
    for _ in range(600):
        if (tmp_path / "done").exists():
            break
        time.sleep(0.05)
    assert (tmp_path / "done").exists(), "the child was killed by SIGPIPE"


def test_a_daemon_that_floods_is_read_away(runner: ScriptRunner, tmp_path: Path) -> None:
    result = run(runner, "yes & echo $! >pid")
    pid = int((tmp_path / "pid").read_text())
    try:
        assert result.exit_code == 0
        assert run(runner, "echo next").stdout == "next\n"
        assert alive(pid)
    finally:
        os.kill(pid, 9)


@pytest.mark.spec("7")
def test_too_much_output_keeps_head_and_tail(runner: ScriptRunner) -> None:
    result = run(runner, "seq 1 2000000", limit=20)
    assert result.truncated
    assert result.stdout.startswith("1\n2\n3\n4\n5\n") and result.stdout.endswith("2000000\n")
    assert "[… 14888876 characters left out …]" in result.stdout


def test_limit_zero_keeps_nothing(runner: ScriptRunner) -> None:
    result = run(runner, "echo hello", limit=0)
    assert result.truncated and "6 characters left out" in result.stdout


@pytest.mark.spec("6")
def test_side_by_side(runner: ScriptRunner) -> None:
    begin = time.monotonic()
    results = runner.run([Script(f"sleep 1; echo {number}") for number in range(5)])
    assert time.monotonic() - begin < 4  # one after the other: 5
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(5)]


def test_control_bytes_are_shown(runner: ScriptRunner) -> None:
    assert run(runner, r"printf 'a\000\033\377\r\n'").stdout == "a‹U+0000›‹U+001B›‹U+DCFF›‹U+000D›\n"


def test_stdin_is_empty_and_there_is_no_terminal(runner: ScriptRunner) -> None:
    result = run(runner, "cat; (: </dev/tty) 2>/dev/null && echo terminal; echo done")
    assert result.stdout == "done\n"


def test_a_script_longer_than_an_argument(runner: ScriptRunner) -> None:
    assert run(runner, "# " + "x" * 300_000 + "\necho long").stdout == "long\n"


def test_a_shell_that_can_not_be_started(tmp_path: Path) -> None:
    runner = ScriptRunner({}, Interrupt(), tmp_path / "gone")
    result = run(runner, "echo")
    assert result.exit_code == 126 and "could not be started" in result.stderr


def test_a_script_that_can_not_be_watched_is_not_left_behind(
    runner: ScriptRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(pid: int) -> int:
        time.sleep(0.3)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", none_left)
    result = run(runner, "echo $$ >pid; sleep 60; true")
    assert result.exit_code == 126 and "Too many open files" in result.stderr
    assert not alive(int((tmp_path / "pid").read_text()))


def test_without_threads_background_children_are_let_go(
    runner: ScriptRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", none_left)
    assert run(runner, "sleep 0.2 & echo started").stdout == "started\n"


def test_a_request_to_stop_cuts_scripts_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("instance.signals.STOP_GRACE", 1)
    interrupt = Interrupt()
    interrupt.ask("stop")
    begin = time.monotonic()
    result = ScriptRunner(os.environ, interrupt, tmp_path).run([Script("echo here; sleep 60")])[0]
    assert result.interrupted and not result.timed_out and result.stdout == "here\n"
    assert time.monotonic() - begin < 30


def test_no_descriptor_is_left(runner: ScriptRunner) -> None:
    run(runner, "true")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        run(runner, "echo x")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.spec("8")
def test_environment_of_scripts() -> None:
    given = {"PYTHONPATH": "/root/sia:/opt/x", "SIA_ENGINE_FD": "3", "PATH": "/bin"}
    assert script_environment(given, Path("/root/sia")) == {"PYTHONPATH": "/opt/x", "PATH": "/bin"}
    assert script_environment({"PYTHONPATH": "/root/sia"}, Path("/root/sia")) == {}


def test_the_limit_counts_what_is_shown() -> None:
    capture = Capture(100)
    capture.feed(b"\x00" * 20)
    assert capture.truncated, "each takes eight characters"
    assert capture.text() == "‹U+0000›" * 6 + "\n[… 8 characters left out …]\n" + "‹U+0000›" * 6
    capture = Capture(160)
    capture.feed(b"\x00" * 20, final=True)
    assert not capture.truncated and capture.text() == "‹U+0000›" * 20


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("limit", [0, 1, 2, 5, 10, 11, 12])
def test_capture_does_not_depend_on_chunks(chunk: int, limit: int) -> None:
    data = "äbcdefghi€k".encode()
    whole, pieces = Capture(limit), Capture(limit)
    whole.feed(data, final=True)
    for begin in range(0, len(data), chunk):
        pieces.feed(data[begin : begin + chunk])
    pieces.feed(b"", final=True)
    assert pieces.text() == whole.text()
    assert whole.truncated == (limit < 11)
