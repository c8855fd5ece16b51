"""Every attempt of the table, made inside of one sandbox with everything in it; each must end as the table says."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyseccomp
import pytest

from sandbox import interpreter
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Bind, Limits, Overlay, SandboxSpec
from tests.sandbox.escape import probe, registry

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]
HERE = Path(__file__).resolve().parent
INSIDE = "/probe/tests/sandbox/escape"
KEY = 0x51A0 + os.getpid()
NEW = {"lsm_set_self_attr": 459, "open_tree_attr": 467, "quotactl_fd": 443, "set_mempolicy_home_node": 450}
libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def things_outside(place: Path) -> Iterator[dict[str, Any]]:
    """What the attempts would like to reach: files, sockets, shared memory of this very user, open to all."""
    queue = f"/sia-escape-{os.getpid()}"
    with ExitStack() as stack:
        (place / "secret").write_text("s3cret")
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract, named = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        abstract.bind("\0" + queue[1:])
        named.bind(str(place / "socket"))
        for each in (abstract, named):
            each.listen()
        memory = libc.shmget(KEY, 4096, 0o1666)
        assert memory >= 0
        stack.callback(libc.shmctl, memory, 0, None)
        assert ctypes.CDLL(None).mq_open(queue.encode(), os.O_CREAT | os.O_RDWR, 0o666, None) >= 0
        stack.callback(ctypes.CDLL(None).mq_unlink, queue.encode())
        shared = Path(f"/dev/shm{queue}")
        shared.write_text("s3cret")
        stack.callback(shared.unlink)
        shown = interpreter.roots(Path(sys.executable))
        yield {
            "secret": str(place / "secret"),
            "unix": str(place / "socket"),
            "port": listener.getsockname()[1],
            "abstract": queue[1:],
            "queue": queue,
            "key": KEY,
            "pid": os.getpid(),
            "group": os.getpgrp(),
            "small_pid": 1,
            "variables": ["SIA_ESCAPE_SECRET"],
            "homes": sorted({"agent", *(root.parts[2] for root in shown if root.parts[1] == "home")}),
        }


Results = tuple[dict[str, str], dict[str, list[str]]]


@pytest.fixture
def results() -> Results:
    """(name → result, place in the upper → attributes) of one launch for all tests of this process."""
    found = _try_everything()
    if isinstance(found, Exception):
        raise found
    return found


@functools.cache
def _try_everything() -> Results | Exception:
    """A failure is remembered too: it would be the same 400 times."""
    try:
        return _results()
    except Exception as error:
        return error


def _results() -> Results:
    os.environ["SIA_ESCAPE_SECRET"] = "s3cret"
    with tempfile.TemporaryDirectory(prefix="sia-escape-") as name:
        place = Path(name)
        place.chmod(0o755)
        with Host.detect(place / "state") as host, things_outside(place) as context:
            numbers = {name: pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) for name in _names()}
            numbers = {name: NEW.get(name, number) if number == -1 else number for name, number in numbers.items()}
            context |= {"spawner": host.launcher.pid, "numbers": numbers}
            found = _launch(host, place, context)
            upper = place / "state/one/upper"
            attributes = {path.name: os.listxattr(path, follow_symlinks=False) for path in upper.iterdir()}
            host.remove(place / "state/one")
            return found, attributes


def _names() -> list[str]:
    """Every word in the attempts' source that may be a system call."""
    words: set[str] = set()
    for file in HERE.glob("*.py"):
        words.update(re.findall(r"\b[a-z_][a-z0-9_]{1,24}\b", file.read_text()))
    return sorted(words)


def _launch(host: Host, place: Path, context: dict[str, Any]) -> dict[str, str]:
    lower = place / "lower"
    lower.mkdir()
    (lower / "file").write_text("content")
    host.own(lower)
    upper, work = host.make_upper(place / "state", "one")
    spec = SandboxSpec(
        command=(sys.executable, "-I", "-S", f"{INSIDE}/probe.py", "/run/context.json"),
        workdir="/app",
        binds=(Bind(HERE, INSIDE),),
        overlays=(Overlay("/app", (lower,), upper, work),),
        files={"/run/context.json": json.dumps(context).encode()},
        limits=Limits(seconds=60),
        python=Path(sys.executable),
    )
    ours, theirs = socket.socketpair()
    ours.send(b"hello")
    read, write = os.pipe()
    errors, errors_end = os.pipe()
    passed = {5: theirs.fileno()}
    with (
        open(read, "rb") as output,
        open(errors, "rb") as said,
        ours,
        Sandbox.start(host, spec, stdout=write, stderr=errors_end, pass_fds=passed) as box,
    ):
        theirs.close()
        os.close(write)
        os.close(errors_end)
        text, trouble = output.read(), said.read()
        outcome = box.wait(60)
    assert outcome is not None and outcome.exit_code == 0, (outcome, trouble)
    found: dict[str, str] = json.loads(text)
    return found


@pytest.mark.parametrize("name", sorted(registry.ATTEMPTS))
def test_refused(results: Results, name: str) -> None:
    found, expected = results[0][name], registry.ATTEMPTS[name].expected
    assert found in expected, f"{name}: {found}, expected {' or '.join(expected)}"
    print(f"{name}: {found}")


def test_there_are_enough(results: Results) -> None:
    assert len(results[0]) == len(registry.ATTEMPTS) >= 120
    assert probe.registry is registry


def test_forged_attributes_are_not_the_layers_own(results: Results) -> None:
    own = [name for names in results[1].values() for name in names if name.startswith("user.overlay.")]
    assert all(name.startswith("user.overlay.overlay.") or name == "user.overlay.impure" for name in own), own
