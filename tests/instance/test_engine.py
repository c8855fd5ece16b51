"""The agent's side of the engine protocol, over a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from lxml import etree

from instance.engine import LlmEngine, Turn
from instance.errors import Cancelled, EngineError, EngineLost, StartError
from instance.lines import InheritedLine, SpawnedLine
from instance.signals import Interrupt


class Peer:
    """The other end: gives prepared replies, keeps requests."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.interrupt = Interrupt()
        self.engine = LlmEngine(InheritedLine(ours.detach()), "/root/sia/action_schema.xsd", self.interrupt)

    def reply(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.theirs.sendall(piece)

    def request(self) -> etree._Element:
        data = b""
        while not data.endswith(b"\x04"):
            data += self.theirs.recv(65536)
        return etree.fromstring(data[:-1])


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.engine.close()
    made.theirs.close()


@pytest.mark.spec("15")
def test_requests_are_as_the_contract_says(peer: Peer) -> None:
    peer.reply(b"1024\x04", b"405\x04", b"<stop", b"/>\x04")
    assert peer.engine.token_limit() == 1024
    assert peer.request().tag == "token_limit"
    assert peer.engine.token_count("sys ]]> & <", "<context><![CDATA[a]]></context>") == 405
    count = peer.request()
    assert count.tag == "token_count"
    assert [child.tag for child in count] == ["schema", "system", "context"]
    assert count.findtext("context") == "<context><![CDATA[a]]></context>"
    assert count.findtext("system") == "sys ]]> & <" and count.findtext("schema") == "/root/sia/action_schema.xsd"
    first, *pieces = peer.engine.infer("s", "<context/>", "<rea")
    assert (first, "".join(pieces)) == ("<rea", "<stop/>")  # the pieces may come as one
    assert peer.request().findtext("prefix") == "<rea"


@pytest.mark.spec("16")
def test_the_prefix_is_put_in_front(peer: Peer) -> None:
    peer.reply(b"soning>x</reasoning>\x04")
    assert "".join(peer.engine.infer("s", "c", "<rea")) == "<reasoning>x</reasoning>"


def test_turns(peer: Peer) -> None:
    peer.reply(b"ok\x04")
    assert "".join(peer.engine.infer("s", [Turn("user", "a & b"), Turn("assistant", "<stop/>")])) == "ok"
    turns = peer.request().findall("turn")
    assert [(turn.get("role"), turn.text) for turn in turns] == [("user", "a & b"), ("assistant", "<stop/>")]


def test_characters_may_be_split(peer: Peer) -> None:
    def slowly() -> None:
        for byte in "<reasoning>ü€🦜</reasoning>\x04".encode():
            peer.theirs.sendall(bytes([byte]))

    thread = threading.Thread(target=slowly)
    thread.start()
    assert "".join(peer.engine.infer("s", "c")) == "<reasoning>ü€🦜</reasoning>"
    thread.join()


def test_two_replies_in_one_piece(peer: Peer) -> None:
    peer.reply(b"5\x046\x04")
    assert (peer.engine.token_limit(), peer.engine.token_limit()) == (5, 6)


@pytest.mark.parametrize("before", [b"", b"<reasoning>half an ans"])
@pytest.mark.spec("19")
def test_typed_errors(peer: Peer, before: bytes) -> None:
    peer.reply(before + b"\x15budget 40 iterations", b" are used up\x04", b"7\x04")
    with pytest.raises(EngineError) as caught:
        list(peer.engine.infer("s", "c"))
    assert (caught.value.code, caught.value.message) == ("budget", "40 iterations are used up")
    assert peer.engine.token_limit() == 7, "the line is still in step"


@pytest.mark.parametrize("number", [b"\x04", b"many\x04"])
def test_a_count_that_is_no_number(peer: Peer, number: bytes) -> None:
    peer.reply(number)
    with pytest.raises(EngineError, match="expected a number"):
        peer.engine.token_limit()


def test_a_closed_line(peer: Peer) -> None:
    peer.reply(b"<reas")
    peer.theirs.close()
    with pytest.raises(EngineLost):
        list(peer.engine.infer("s", "c"))
    with pytest.raises(EngineLost):
        peer.engine.restart()


def test_bytes_that_are_not_text(peer: Peer) -> None:
    peer.reply(b"\xff\xfe\x00\x04")
    assert "".join(peer.engine.infer("s", "c")) == "\ufffd\ufffd\x00"


@pytest.mark.spec("19")
def test_a_request_to_stop_cancels(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("instance.signals.STOP_GRACE", 0.2)
    peer.interrupt.ask("stop")
    begin = time.monotonic()
    with pytest.raises(Cancelled):
        list(peer.engine.infer("s", "c"))
    assert time.monotonic() - begin < 20


def test_a_request_larger_than_the_socket_buffer(peer: Peer) -> None:
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(len(peer.request().findtext("context", ""))))
    thread.start()
    peer.reply(b"1\x04")
    assert peer.engine.token_count("s", "x" * 3_000_000) == 1
    thread.join()
    assert got == [3_000_000]


def test_not_a_socket() -> None:
    with pytest.raises(StartError, match="not a connected socket"):
        LlmEngine(InheritedLine(9999), "s", Interrupt())
    with pytest.raises(StartError, match="can't be started"):
        LlmEngine(SpawnedLine(["/nonexistent/engine"], Interrupt()), "s", Interrupt())


def test_an_engine_that_always_dies_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("instance.lines._BACKOFF_MAX", 0.01)
    monkeypatch.setattr("instance.lines._BACKOFF_FIRST", 0.01)
    engine = LlmEngine(SpawnedLine(["false"], Interrupt()), "s", Interrupt())
    with pytest.raises(EngineLost, match=r"times in a row, last with code 1"):
        for _ in range(20):
            engine.restart()
    engine.close()
