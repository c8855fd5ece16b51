"""A launch, from start to outcome."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.errors import CannotIsolate, SandboxFailed
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Bind, Limits, Overlay, SandboxSpec

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]


def spec(script: str, **fields: object) -> SandboxSpec:
    return SandboxSpec(command=("sh", "-c", script), workdir="/tmp", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [0, 1, 7, 42, 125, 126, 127])
def test_exit_codes_pass(inside: Callable, code: int) -> None:
    outcome, text = inside(f"echo out; exit {code}")
    assert (outcome.exit_code, outcome.signal, outcome.limit, outcome.setup_error) == (code, None, None, None)
    assert text == "out\n"


def test_signal_that_ended_the_command_is_named(inside: Callable) -> None:
    outcome, _ = inside("kill -SEGV $$")
    assert (outcome.exit_code, outcome.signal) == (None, signal.SIGSEGV)


def test_missing_command_is_127_with_a_message(inside: Callable, host: Host) -> None:
    read, write = os.pipe()
    with open(read, "rb") as output, Sandbox.start(host, SandboxSpec(("nosuch",), "/tmp"), stderr=write) as sandbox:
        os.close(write)
        outcome = sandbox.wait(20)
        assert outcome is not None and outcome.exit_code == 127
        assert b"nosuch" in output.read()


def test_interpreter_runs_at_its_own_path(inside: Callable) -> None:
    outcome, text = inside(
        "import lxml.etree, sys; print(sys.prefix)", python=True, directories=("/root/sia", "/root/data")
    )
    assert (outcome.exit_code, text) == (0, f"{sys.prefix}\n")


def test_writes_go_to_the_upper(inside: Callable, overlay: Callable) -> None:
    app = overlay("/app", {"old": "old"})
    outcome, text = inside("cat old && echo new > old && id -u", workdir="/app", overlays=(app,))
    assert (outcome.exit_code, text) == (0, "old1000\n")
    assert (app.upper / "old").read_text() == "new\n"
    assert (app.lowers[0] / "old").read_text() == "old"


def test_stdin_stays_open_until_we_close_it(host: Host) -> None:
    (their_in, our_in), (our_out, their_out) = os.pipe(), os.pipe()
    sandbox = Sandbox.start(
        host, spec("while read -r line; do echo got $line; done; echo eof"), stdin=their_in, stdout=their_out
    )
    os.close(their_in)
    os.close(their_out)
    with sandbox, open(our_in, "wb", buffering=0) as writer, open(our_out, "rb") as reader:
        for word in (b"one", b"two"):
            writer.write(word + b"\n")
            assert reader.readline() == b"got " + word + b"\n"
            assert sandbox.wait(0.1) is None
        writer.close()
        assert reader.read() == b"eof\n"
        outcome = sandbox.wait(20)
        assert outcome is not None and outcome.exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGQUIT])
def test_signals_reach_the_command(host: Host, number: signal.Signals) -> None:
    read, write = os.pipe()
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo caught; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
    with open(read, "rb") as output, Sandbox.start(host, spec(script), stdout=write) as sandbox:
        os.close(write)
        assert output.readline() == b"ready\n"
        sandbox.signal(number)
        outcome = sandbox.wait(20)
        assert outcome is not None and outcome.exit_code == 9
        assert output.read() == b"caught\n"


def test_signal_to_a_command_without_handler_ends_it(host: Host) -> None:
    with Sandbox.start(host, spec("exec sleep 60")) as sandbox:
        sandbox.signal(signal.SIGTERM)
        outcome = sandbox.wait(20)
    assert outcome is not None and (outcome.exit_code, outcome.signal) == (None, signal.SIGTERM)
    sandbox.signal(signal.SIGTERM)  # it is gone: nothing happens


def test_descriptors_are_passed_and_nothing_else(host: Host, inside: Callable) -> None:
    ours, theirs = socket.socketpair()
    leak = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(leak, True)
    read, write = os.pipe()
    script = "ls /proc/self/fd | tr '\\n' ' '; echo hello >&5"
    with (
        open(read, "rb") as output,
        Sandbox.start(host, spec(script), stdout=write, pass_fds={5: theirs.fileno()}) as box,
    ):
        os.close(write)
        theirs.close()
        outcome = box.wait(20)
        assert output.read().split() == [b"0", b"1", b"2", b"3", b"5"]  # 3 is ls reading the directory
        assert ours.recv(100) == b"hello\n"
    ours.close()
    os.close(leak)
    assert outcome is not None and outcome.exit_code == 0


def test_a_directory_is_never_passed(host: Host) -> None:
    descriptor = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(CannotIsolate, match="only sockets and pipes"):
        Sandbox.start(host, spec("true"), pass_fds={5: descriptor})
    os.close(descriptor)


def test_kill_takes_everything(host: Host) -> None:
    read, write = os.pipe()
    script = "(setsid sleep 61 &) ; trap '' TERM; (trap '' TERM; sleep 62) & sh -c 'kill -STOP $$' & echo up; sleep 63"
    sandbox = Sandbox.start(host, spec(script), stdout=write)
    os.close(write)
    with open(read, "rb") as output:
        assert output.readline() == b"up\n"
        before = time.monotonic()
        sandbox.kill()
        assert time.monotonic() - before < 10  # test_kill.py has the figure
        assert output.read() == b""  # nobody holds the pipe any more
    outcome = sandbox.wait(0)
    assert outcome is not None and (outcome.signal, outcome.setup_error) == (signal.SIGKILL, None)
    with pytest.raises(ProcessLookupError):
        os.kill(sandbox.pid, 0)
    sandbox.kill()


def test_a_path_that_is_not_there(host: Host, tmp_path: Path) -> None:
    try:
        with Sandbox.start(host, spec("true", binds=(Bind(tmp_path / "missing", "/x"),))) as sandbox:
            outcome = sandbox.wait(20)
            assert outcome is not None and "missing" in (outcome.setup_error or "")
            assert (outcome.exit_code, outcome.signal) == (None, None)
    except SandboxFailed as error:
        assert "missing" in str(error)


def test_layers_that_do_not_fit_are_refused(host: Host, overlay: Callable, tmp_path: Path) -> None:
    lowers = []
    for number in range(400):
        directory = tmp_path / ("a-long-name-for-a-layer-" + "x" * 40 + str(number))
        directory.mkdir()
        lowers.append(directory)
    with pytest.raises(CannotIsolate, match="bytes of mount options"):
        Sandbox.start(host, spec("true", overlays=(overlay(lowers=tuple(lowers)),)))


def test_threads_may_end_and_launch(host: Host) -> None:
    boxes: list[Sandbox] = []
    threads = [
        threading.Thread(target=lambda: boxes.append(Sandbox.start(host, spec("sleep 0.5; exit 3")))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = [box.wait(30) for box in boxes]
    assert [outcome.exit_code for outcome in outcomes if outcome] == [3] * 6


def test_several_hosts_at_once(host: Host, tmp_path: Path) -> None:
    with Host.detect(tmp_path / "other") as other:
        upper, work = other.make_upper(tmp_path / "other" / "u", "1")
        lower = tmp_path / "low"
        lower.mkdir()
        other.own(lower)
        box = Sandbox.start(other, spec("sleep 60", overlays=(Overlay("/app", (lower,), upper, work),)))
        with Sandbox.start(host, spec("exit 4")) as second:
            outcome = second.wait(20)
            assert outcome is not None and outcome.exit_code == 4
    ended = box.wait(5)  # closing its host killed it
    assert ended is not None and ended.signal == signal.SIGKILL


def test_nothing_is_left_after_many_launches(host: Host) -> None:
    def look() -> tuple[int, int, int]:
        descriptors, spawners = (len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in ("self", host.launcher.pid))
        return descriptors, spawners, len(Path("/proc/self/mounts").read_text().splitlines())

    with Sandbox.start(host, spec("true")) as box:
        box.wait()
    before = look()
    for _ in range(30):
        with Sandbox.start(host, spec("true", limits=Limits(seconds=20))) as box:
            assert box.wait(20) is not None
    assert look() == before
    assert not host.live


def test_a_launch_that_fails_halfway_keeps_no_descriptor(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(host.memory, "group", full)
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    with pytest.raises(SandboxFailed, match="No space left"):
        Sandbox.start(host, SandboxSpec(("true",), "/tmp"))
    assert len(os.listdir("/proc/self/fd")) == len(before)  # noqa: PTH208


def test_an_answer_that_comes_too_late_is_not_the_next_ones(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for half a minute must not give a sandbox another one's ramdisk."""
    os.kill(host.launcher.pid, signal.SIGSTOP)
    try:
        monkeypatch.setattr("sandbox.launcher.START_TIMEOUT", 0.05)
        for _ in range(2):
            assert "no answer" in str(host.launcher.request({"unbind": "/nowhere/first"}))
    finally:
        os.kill(host.launcher.pid, signal.SIGCONT)
    monkeypatch.undo()
    assert "/nowhere/second" in str(host.launcher.request({"unbind": "/nowhere/second"}))
    assert "/nowhere/third" in str(host.launcher.request({"unbind": "/nowhere/third"}))


def test_a_spawner_whose_answer_nobody_reads_ends_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Host.detect(tmp_path / "state") as host:
        host.launcher.channel.sendall(b'{"unbind": "/nowhere"}')
        assert select.select([host.launcher.channel], [], [], 20)[0]
    assert capfd.readouterr().err == ""
