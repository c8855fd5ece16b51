"""A tiny engine program that answers from a list, and agents started against it as real processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from instance.clock import Clock, SequentialIds
from instance.memory import WorkingMemory
from instance.scripts import ScriptRunner, script_environment
from instance.signals import Interrupt

ROOT = Path(__file__).resolve().parents[2]

ENGINE = r"""
import json, os, socket, sys, time
answers, record = sys.argv[1], sys.argv[2]
line = socket.socket(fileno=0)
rest = b""
def position():
    try:
        return sum(1 for _ in open(record))
    except FileNotFoundError:
        return 0
while True:
    while b"\x04" not in rest:
        data = line.recv(65536)
        if not data:
            sys.exit(0)
        rest += data
    request, _, rest = rest.partition(b"\x04")
    if request.startswith(b"<token_limit"):
        line.sendall(b"32768\x04")
        continue
    if request.startswith(b"<token_count"):
        line.sendall(b"%d\x04" % (len(request) // 4))
        continue
    number = position()
    with open(record, "a") as file:
        file.write(json.dumps(request.decode()) + "\n")
    todo = json.load(open(answers))
    answer = todo[min(number, len(todo) - 1)]
    if isinstance(answer, str):
        line.sendall(answer.encode("utf-8", "surrogatepass") + b"\x04")
    elif "error" in answer:
        line.sendall(b"\x15" + answer["error"].encode() + b"\x04")
    elif "die" in answer:
        line.sendall(b"<reason")
        os._exit(3)
    elif "wait" in answer:
        time.sleep(answer["wait"])
        line.sendall(answer["then"].encode() + b"\x04")
    elif "repeat" in answer:
        line.sendall((answer["before"] + answer["repeat"] * answer["times"] + answer["after"]).encode() + b"\x04")
    elif "hex" in answer:
        line.sendall(bytes.fromhex(answer["hex"]) + b"\x04")
"""


class Running:
    """An agent as a process, its engine, and what both left."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        self.directory, self.data, self._env = directory, directory / "data", env
        self._record, self._answers = directory / "asked.jsonl", directory / "answers.json"
        (directory / "engine.py").write_text(ENGINE)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, answers: list[object], *options: str) -> subprocess.Popen[bytes]:
        """Start the agent; `answers` go on where the last start left off."""
        self._answers.write_text(json.dumps(answers))
        engine = f"{sys.executable} -I {self.directory}/engine.py {self._answers} {self._record}"
        work = self.directory / "work"
        work.mkdir(exist_ok=True)
        self._close_streams()
        with (self.directory / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "instance", "--engine", engine, "--data", str(self.data), *options],
                cwd=work,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self._env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        return self.process

    def finish(self, sent: bytes = b"", seconds: float = 20.0) -> tuple[int, str]:
        """Exit code and standard output."""
        assert self.process is not None
        out, _ = self.process.communicate(sent, timeout=seconds)
        return self.process.returncode, out.decode()

    def requests(self) -> list[str]:
        """The inference requests that the engine got."""
        return [json.loads(line) for line in self._record.read_text().splitlines()] if self._record.exists() else []

    def contexts(self) -> list[str]:
        """The contexts that the engine was asked about."""
        from lxml import etree

        from instance.validator import strict_parser

        return [
            etree.fromstring(request.encode(), strict_parser()).findtext("context", "") for request in self.requests()
        ]

    def asked(self, count: int, seconds: float = 30.0) -> None:
        """Wait until the engine was asked `count` times."""
        wait_for(lambda: len(self.requests()) >= count, seconds)

    @property
    def stderr(self) -> str:
        return (self.directory / "stderr").read_text()

    def close(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
            self._close_streams()

    def _close_streams(self) -> None:
        if self.process is not None:
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    stream.close()


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until `condition` holds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def copy_of_agent(into: Path, **constants: str) -> Path:
    """A copy of the agent's code in which constants of its renderer have other values."""
    for name in ("instance", "procedures"):
        shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "action_schema.xsd", into)
    file = into / "instance" / "renderer.py"
    for name, value in constants.items():
        file.write_text(re.sub(rf"(?m)^{name} = \S+", f"{name} = {value}", file.read_text()))
    return into


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path, {"SIA_DETERMINISTIC": "1"})
    yield running
    running.close()


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_for


@pytest.fixture
def runner(tmp_path: Path) -> ScriptRunner:
    return ScriptRunner(script_environment(os.environ, ROOT), Interrupt(), tmp_path)


@pytest.fixture
def memory(runner: ScriptRunner) -> WorkingMemory:
    return WorkingMemory(runner)


@pytest.fixture
def ids() -> SequentialIds:
    return SequentialIds()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def schema() -> str:
    return (ROOT / "action_schema.xsd").read_text()
