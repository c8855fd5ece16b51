"""Engine programs as processes: start, death, restart, and that nothing outlives the supervisor."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator import protocol
from orchestrator.engines.host import EngineDown, EngineHost
from orchestrator.errors import ConfigError

POLICY = "[[rule]]\nanswer = '<stop/>'\n"
TOP = Path(__file__).parents[3]
SCRIPTED = ["python", "-m", "orchestrator.engines.scripted"]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def host(tmp_path: Path, policy: Path) -> Iterator[EngineHost]:
    with EngineHost("test", [*SCRIPTED, str(policy)], TOP, tmp_path / "engine.log") as host:
        yield host


def request(line: socket.socket) -> bytes:
    line.settimeout(30)
    line.sendall(protocol.write_request(protocol.Request("infer_xml", context="<context/>", seed=1, max_tokens=9)))
    answer = b""
    while answer.count(protocol.EOT_BYTE) < 2:
        part = line.recv(65536)
        if not part:
            raise ConnectionError
        answer += part
    return answer


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    """Whether none of these processes is there any more, zombies aside."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            return True
        time.sleep(0.02)
    return False


def family(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def wait_for(condition: object, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_it_answers_several_lines_and_is_gone_after_close(tmp_path: Path, host: EngineHost) -> None:
    assert host.wait_ready() == 32768
    lines = [host.connect() for _ in range(3)]
    assert {request(line) for line in reversed(lines)} == {
        b'<stop/>\x04<usage prompt="3" completion="2" cached="0" finish="stop"/>\x04'
    }
    assert host._process is not None
    pids = [host._process.pid, *family(host._process.pid)]
    for line in lines:
        line.close()
    host.close()
    assert gone(pids, 0.5)
    with pytest.raises(EngineDown, match="was closed"):
        host.connect()


def test_a_long_state_directory_is_no_obstacle(tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120) / ("y" * 120)
    long.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with EngineHost("test", [*SCRIPTED, str(policy)], TOP, long / "engine.log") as host:
        assert host.wait_ready() == 32768
        assert [path.name for path in long.iterdir()] == ["engine.log"]  # no socket, no directory is left


@pytest.mark.bad_input
@pytest.mark.parametrize("word", ["no-such-engine", "./no-such-engine", "/etc/passwd"])
def test_bad_input_engine_command_that_does_not_exist(tmp_path: Path, word: str) -> None:
    host = EngineHost("demo", [word], tmp_path, tmp_path / "log")
    with pytest.raises(ConfigError) as raised:
        host.start()
    host.close()
    print(raised.value.render())
    assert f"command {word!r} does not exist or is not executable" in raised.value.render()
    assert "[engines.demo]" in raised.value.fix


@pytest.mark.bad_input
def test_bad_input_engine_that_ends_at_once_says_why(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("[[rule]]\nanswer = '{x}'\n")
    with EngineHost("demo", [*SCRIPTED, str(tmp_path / "policy.toml")], TOP, tmp_path / "log") as host:
        with pytest.raises(ConfigError) as raised:
            host.wait_ready()
        print(raised.value.render())
        assert "ended with exit code 78" in raised.value.what
        assert "{x} names no let" in raised.value.what


@pytest.mark.bad_input
def test_bad_input_engine_that_answers_nothing_at_start(tmp_path: Path) -> None:
    with EngineHost("demo", ["python", "-c", "import time; time.sleep(99)"], TOP, tmp_path / "log") as host:
        with pytest.raises(ConfigError) as raised:
            host.wait_ready(0.6)
        print(raised.value.render())
        assert "no answer" in raised.value.what


def test_a_dead_program_is_started_again_but_not_for_ever_at_once(tmp_path: Path, host: EngineHost) -> None:
    host.wait_ready()
    assert host._process is not None
    for _ in range(2):
        os.killpg(os.getpgid(family(host._process.pid)[0]), signal.SIGKILL)
        wait_for(lambda: not host.alive())
        with pytest.raises(EngineDown, match="signal 9") as raised:
            host.connect()
        assert 0 < raised.value.retry_after <= 0.2
        time.sleep(raised.value.retry_after + 0.01)
        with host.connect() as line:
            assert request(line).startswith(b"<stop/>")
    host._deaths = 40
    host._process.kill()
    wait_for(lambda: not host.alive())
    with pytest.raises(EngineDown) as raised:
        host.connect()
    assert 9 < raised.value.retry_after <= 10  # capped


def test_no_process_is_left_after_kill_9_of_the_supervisor(tmp_path: Path, policy: Path) -> None:
    """Even if the thread that started it ended, the engine ignores signals, and has a child in a session of its own."""
    engine = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True);"
        "time.sleep(300)"
    )
    program = (
        "import sys, threading, time\nfrom pathlib import Path\nfrom orchestrator.engines.host import EngineHost\n"
        "host = EngineHost('e', ['python', '-c', sys.argv[1]], Path('/'), Path(sys.argv[2]))\n"
        "thread = threading.Thread(target=host.start); thread.start(); thread.join()\n"
        "print(host._process.pid, flush=True); time.sleep(300)\n"
    )
    argv = [sys.executable, "-c", program, engine, str(tmp_path / "log")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=TOP) as supervisor:
        assert supervisor.stdout is not None
        keeper = int(supervisor.stdout.readline())
        wait_for(lambda: len(family(keeper)) == 2)
        time.sleep(0.2)  # not killed by the end of the thread
        pids = [keeper, *family(keeper)]
        assert not gone(pids, 0.05)
        supervisor.kill()
    assert gone(pids)


def test_close_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    engine = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
    )
    host = EngineHost("e", ["python", "-c", engine], tmp_path, tmp_path / "log")
    host.start()
    assert host._process is not None
    wait_for(lambda: b"up" in (tmp_path / "log").read_bytes())
    pids = [host._process.pid, *family(host._process.pid)]
    host.close()
    assert gone(pids, 0.5)


def test_the_terminals_interrupt_does_not_reach_it(host: EngineHost) -> None:
    host.wait_ready()
    assert host._process is not None
    assert os.getsid(host._process.pid) != os.getsid(0)
    assert {os.getpgid(pid) for pid in family(host._process.pid)} != {os.getpgid(0)}


def test_the_socket_may_be_the_line_itself_and_stdio_serves_a_person(policy: Path) -> None:
    argv = [sys.executable, "-m", "orchestrator.engines.scripted", str(policy)]
    ours, theirs = socket.socketpair()
    with ours, subprocess.Popen(argv, stdin=theirs, cwd=TOP) as program:
        theirs.close()
        ours.settimeout(30)
        ours.sendall(b"<token_limit/>\x04<infer_xml><system/><context>x</context></infer_xml>\x04")
        answer = b""
        while answer.count(protocol.EOT_BYTE) < 2:
            answer += ours.recv(100)
        assert answer == b"32768\x04<stop/>\x04"  # no usage without a seed
        ours.shutdown(socket.SHUT_WR)
        assert program.wait(30) == 0
    typed = b"<infer_xml><system/>\n<context>x</context></infer_xml>\n"
    done = subprocess.run(argv, input=typed, capture_output=True, cwd=TOP, timeout=30, check=True)
    assert done.stdout == b"<stop/>\x04"
    assert subprocess.run(
        [*argv[:3], "--check", str(policy)], cwd=TOP, timeout=30, check=True, capture_output=True
    ).stdout
    assert subprocess.run(argv[:3], cwd=TOP, timeout=30, check=False, capture_output=True).returncode == 2
