"""The supervisor's socket: hostile requests get an answer in words, and harm nobody else."""

from __future__ import annotations

import base64
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import supervisor_socket
from orchestrator.errors import Failed
from orchestrator.supervisor_socket import SupervisorServer, answer_request


class Recorder:
    """Services that say what they were asked."""

    def propose(self, origin: str, branch: str, why: str, bundle: bytes) -> str:
        return f"{origin} {branch} {why} {len(bundle)}"

    def results(self, origin: str, campaign: str) -> str:
        raise Failed("no such campaign", fix="run one")

    def status(self, origin: str) -> str:
        return "fine\x04\ud800"

    def trial(self, origin: str, branch: str, task: str) -> str:
        return f"{branch} {task}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SupervisorServer]:
    made = SupervisorServer(tmp_path, Recorder())
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


def ask(path: Path, request: bytes) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(request + b"\x04")
        received = b""
        while not received.endswith(b"\x04"):
            data = client.recv(65536)
            assert data
            received += data
        return received[:-1].decode()


def test_requests_over_the_socket(server: SupervisorServer) -> None:
    path = server.listen("t1")
    bundle = base64.encodebytes(bytes(12_000_000)).decode()
    assert ask(path, f'<propose branch="b" why="w">{bundle}</propose>'.encode()) == "t1 b w 12000000"
    assert ask(path, b"<status/>") == "fine\ufffd?"
    assert ask(path, b"<results/>") == "Not done: no such campaign. What helps: run one."
    server.forget(path)
    assert not path.exists()


def test_several_requests_on_one_connection(server: SupervisorServer) -> None:
    path = server.listen("t1")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b'<trial branch="a" task="x"/>\x04<trial branch="b" task="y"/>\x04')
        received = b""
        while received.count(b"\x04") < 2:
            received += client.recv(100)
    assert received == b"a x\x04b y\x04"


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\xff\x00",
        b"<propose>",
        b"<status/><status/>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><status>&b;</status>',
        '<?xml version="1.0" encoding="utf-16"?><status/>'.encode("utf-16"),
        b"<propose branch='b'>***</propose>",
        b"<propose branch=''>AAAA</propose>",
        b"<propose branch='b'/>",
        b"<a>" * 10000,
        b"<unknown/>",
    ],
)
def test_bad_requests_are_answered(request_: bytes) -> None:
    answer = answer_request(Recorder(), "t", request_)
    assert answer.startswith(("The request was not understood", "Not done", "Unknown request"))


def test_an_instance_that_stalls_delays_only_itself(server: SupervisorServer) -> None:
    slow, quick = server.listen("slow"), server.listen("quick")
    clients = []
    for _ in range(8):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(slow))
        client.send(b"<sta")
        clients.append(client)
    begun = time.monotonic()
    assert ask(quick, b"<trial/>") == " "
    server.forget(slow)  # ends the half request at once
    assert time.monotonic() - begun < 2
    for client in clients:
        client.close()


def test_too_large_request_is_cut_off(server: SupervisorServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_socket, "REQUEST_CAP", 200_000)
    path = server.listen("t")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        writer = threading.Thread(target=_flood, args=(client,))
        writer.start()
        assert b"at most" in client.recv(1000)
        writer.join(5)
        assert not writer.is_alive()
    assert ask(path, b"<trial/>") == " "


def _flood(client: socket.socket) -> None:
    try:
        for _ in range(1000):
            client.sendall(b"x" * 65536)
    except OSError:
        pass


def test_long_directory(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / "e"
    deep.mkdir(parents=True)
    server = SupervisorServer(deep, Recorder())
    path = server.listen("t")
    assert path.is_socket() and path.stat().st_mode & 0o777 == 0o666
    server.close()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "bomb",
    [
        b"<status>" + b"<a/>" * 4_000_000 + b"</status>",
        b"<status " + b" ".join(b'a%x=""' % number for number in range(200_000)) + b"/>",
    ],
    ids=["elements", "attributes"],
)
def test_bad_input_request_that_would_take_the_memory(bomb: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = answer_request(Recorder(), "t1", bomb)
    print(answer)
    assert answer.startswith("The request was not understood")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
