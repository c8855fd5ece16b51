"""Input is taken once and never lost; output never blocks."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instance.iobuffer import StandardIOBuffer, WebIOBuffer, unfinished


class Pipes:
    def __init__(self) -> None:
        self.inside_in, self.feed = os.pipe()
        self.out, self.inside_out = os.pipe()
        self.buffer = StandardIOBuffer(self.inside_in, self.inside_out)

    def waiting(self) -> int:
        return int(struct.unpack("i", fcntl.ioctl(self.inside_in, termios.FIONREAD, b"\0\0\0\0"))[0])


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    for descriptor in (made.inside_in, made.feed, made.out, made.inside_out):
        try:
            os.close(descriptor)
        except OSError:
            pass


@pytest.mark.spec("25")
def test_nothing_waits(pipes: Pipes) -> None:
    assert pipes.buffer.take() is False
    assert pipes.buffer.read() == "" and pipes.buffer.buffer_length() == 0


def test_bytes_stay_in_the_pipe_until_the_agent_looks(pipes: Pipes) -> None:
    os.write(pipes.feed, "grüße".encode())
    assert pipes.waiting() == 7
    assert pipes.buffer.take() is True
    assert pipes.waiting() == 0 and pipes.buffer.buffer_length() == 5 and pipes.buffer.taken == 7
    assert pipes.buffer.read() == "grüße" and pipes.buffer.buffer_length() == 0
    assert pipes.buffer.taken == 7


def test_a_character_that_has_not_arrived_in_full_waits(pipes: Pipes) -> None:
    os.write(pipes.feed, b"a\xe2\x82")
    pipes.buffer.take()
    assert pipes.buffer.buffer_length() == 1 and pipes.buffer.read() == "a"
    assert pipes.buffer.get_state()[0] == b"\xe2\x82"
    os.write(pipes.feed, b"\xac")
    assert pipes.buffer.read() == "€"


def test_a_broken_tail_is_shown_at_the_end(pipes: Pipes) -> None:
    os.write(pipes.feed, b"a\xe2\x82")
    os.close(pipes.feed)
    assert pipes.buffer.read() == "a‹U+DCE2›‹U+DC82›"
    assert pipes.buffer.take() is False


def test_state_goes_on(pipes: Pipes) -> None:
    os.write(pipes.feed, b"one\xff\xc3")
    pipes.buffer.take()
    other = StandardIOBuffer(pipes.inside_in, pipes.inside_out)
    other.set_state(*pipes.buffer.get_state())
    os.write(pipes.feed, b"\xa4")
    assert other.read() == "one‹U+DCFF›ä"


@pytest.mark.spec("25")
def test_a_reader_that_does_not_read_never_blocks(pipes: Pipes) -> None:
    text = "0123456789" * 20_000
    begin = time.monotonic()
    pipes.buffer.write(text)
    assert time.monotonic() - begin < 10  # it would block for ever
    assert not pipes.buffer.flush()
    received = b""
    while len(received) < len(text):
        received += os.read(pipes.out, 65536)
        pipes.buffer.flush()
    assert received.decode() == text and pipes.buffer.get_state()[1] == b""


def test_a_reader_that_went_away_is_no_error(pipes: Pipes) -> None:
    os.close(pipes.out)
    pipes.buffer.write("hello\n")
    assert pipes.buffer.flush() and pipes.buffer.get_state() == (b"", b"")


def test_a_flood_waits_in_the_pipe(pipes: Pipes) -> None:
    os.set_blocking(pipes.feed, False)
    fcntl.fcntl(pipes.feed, 1031, 1 << 20)  # F_SETPIPE_SZ
    for _ in range(3):
        os.write(pipes.feed, b"x" * 1_000_000)
        pipes.buffer.take()
    assert pipes.waiting() >= 900_000 and pipes.buffer.buffer_length() <= 1_200_000


@given(st.text(max_size=4), st.integers(0, 16))
def test_a_cut_anywhere_loses_nothing(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    whole = len(data) - unfinished(data)
    assert data[:whole].decode() == text[: len(data[:whole].decode())]
    assert len(data) - whole <= 3


@given(st.binary())
def test_unfinished_of_any_bytes(data: bytes) -> None:
    assert 0 <= unfinished(data) <= min(3, len(data))


@pytest.mark.spec("25")
def test_web_buffer() -> None:
    web = WebIOBuffer()
    web.append_stdin("hi")
    assert web.buffer_length() == 2 and web.read() == "hi" and web.buffer_length() == 0
    web.write("a")
    web.write("b")
    assert web.get_stdout() == "ab"
    web.clear_stdout()
    assert web.get_stdout() == ""
