"""Descriptors that an instance sends to itself and never receives: the kernel counts them for all of its user."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Limits, SandboxSpec

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]

HOLD = """
import socket, time
held, sent = [], 0
try:
    while True:
        held.append(socket.socketpair())
        for _ in range(5):
            socket.send_fds(held[-1][0], [b"x"], [0] * 200)
            sent += 200
except OSError as error:
    print(error.errno, sent > 0, flush=True)
time.sleep(60)
"""


@pytest.fixture
def a_usual_limit() -> Iterator[None]:
    """Where the supervisor may have as many descriptors as an instance, which is what most systems begin with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("a_usual_limit")
def test_others_are_launched_all_the_same(host: Host, inside: Callable) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096:
        pytest.skip("this user may not have more descriptors than an instance")
    reading, writing = os.pipe()
    spec = SandboxSpec((sys.executable, "-I", "-S", "-c", HOLD), "/tmp", python=Path(sys.executable), limits=Limits())
    with open(reading, "rb", buffering=0) as output, Sandbox.start(host, spec, stdout=writing) as holder:
        os.close(writing)
        assert output.read(100) == b"109 True\n"  # ETOOMANYREFS
        assert inside("echo fine")[1] == "fine\n"
        limits = Limits(open_files=512, seconds=60)
        for network in ("none", ("a.test:1",)):  # the proxy's listener comes out as a descriptor
            outcome, text = inside(
                "", python=True, command=("sh", "-c", "ulimit -n -H"), limits=limits, network=network
            )
            assert (outcome.exit_code, text) == (0, "512\n")
        assert not holder.ended
