"""Descriptors that an instance sends along (SCM_RIGHTS): never kept, and nobody waits for what closing them takes.

Both kernels are played: one that refuses them at the sender (Linux ≥ 6.16), and one that drops them at the receiver.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import broker, instance_end, supervisor_socket
from orchestrator.supervisor_socket import SupervisorServer
from tests.orchestrator.broker_kit import Kit, infer_request, kit_in, wait_for

KERNELS = ["refuses", "drops"]
LINGER = 20  # seconds that a closing thread is held up


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "drops":
        for module in (instance_end, supervisor_socket):
            monkeypatch.setattr(module, "refuse_descriptors", lambda line: None)
    elif not refuses():
        pytest.skip("this kernel has no SO_PASSRIGHTS")
    return str(request.param)


def refuses() -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        instance_end.refuse_descriptors(ours)
        try:
            socket.send_fds(theirs, [b"x"], [0])
        except PermissionError:
            return True
        return False


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with kit_in(tmp_path) as kit:
        yield kit


def send_along(line: socket.socket, data: bytes, files: list[int]) -> bool:
    """With the descriptors where the kernel takes them (then True), else without."""
    sent = 0
    with contextlib.suppress(PermissionError):
        sent = socket.send_fds(line, [data], files)
    line.sendall(data[sent:])
    return sent > 0


def ours() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_the_engine_line_takes_none(kit: Kit, kernel: str) -> None:
    _, instance = kit.line(kit.engine())
    assert instance.infer() == b"<stop/>"
    reading, writing = os.pipe()
    before = ours()
    for _ in range(30):
        send_along(instance.socket, infer_request(), [writing] * 250)
        assert instance.receive() == b"<stop/>"
    assert ours() == before
    os.close(writing)
    assert os.read(reading, 1) == b""  # nobody has a copy of the writing end
    os.close(reading)


def test_the_supervisors_socket_takes_none(kernel: str, tmp_path: Path) -> None:
    class Deaf:
        def __getattr__(self, name: str) -> object:
            return lambda *_: "fine"

    server = SupervisorServer(tmp_path, Deaf())  # type: ignore[arg-type]
    path = server.listen("t1")
    reading, writing = os.pipe()
    with contextlib.closing(server), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"<status/>\x04")
        assert client.recv(100) == b"fine\x04"
        before = ours()
        for _ in range(30):
            send_along(client, b"<status/>\x04", [writing] * 250)
            assert client.recv(100) == b"fine\x04"
        assert ours() == before
        os.close(writing)
        assert os.read(reading, 1) == b""
    os.close(reading)


def lingering() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection; who closes the first one waits for the second to read, which it does not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    near.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            near.send(bytes(65536))
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER))
    return near, far


@pytest.mark.parametrize("when", ["read", "unread"])
def test_what_closes_slowly_holds_up_nobody(kit: Kit, kernel: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`read`: the thread that receives hangs. `unread`: the one that closes the line, with what lies in it."""
    monkeypatch.setattr(broker, "_STUCK", 0.3)
    slow = "read(); time.sleep(30)"
    line, instance = kit.line(kit.program(slow) if when == "unread" else kit.engine())
    if when == "unread":
        instance.send(infer_request())
        wait_for(lambda: line.engine_silent > 0.0)
    for turned in (False, True):  # whichever is closed first, another waits
        near, far = lingering()
        for end in (far, near) if turned else (near, far):
            if not send_along(instance.socket, b"<", [end.fileno()]):
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))  # we don't wait either
        near.close()
        far.close()
    instance.socket.close()
    if when == "read" and kernel == "drops":
        time.sleep(0.2)
        assert line.ended is None  # it hangs: the test does what it says
    begun = time.monotonic()
    line.close()
    assert time.monotonic() - begun < 5
    assert line._thread.is_alive() == (kernel == "drops")
    if kernel == "drops":
        wake(line._thread)


def wake(thread: threading.Thread) -> None:
    """End the waiting of a thread that hangs in the kernel, so that no test leaves one behind."""
    previous = signal.signal(signal.SIGUSR2, lambda *_: None)
    assert thread.ident is not None
    end = time.monotonic() + LINGER + 5
    while thread.is_alive() and time.monotonic() < end:
        signal.pthread_kill(thread.ident, signal.SIGUSR2)
        thread.join(0.05)
    signal.signal(signal.SIGUSR2, previous)
    assert not thread.is_alive()
