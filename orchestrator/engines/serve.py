"""The engine program's side of the protocol: whatever fd 0 is, a `Model` answers on it."""

from __future__ import annotations

import os
import re
import select
import socket
import stat
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator import protocol
from orchestrator.protocol import EngineUsage, Request


class EngineError(Exception):
    """A typed error for the asker; `code` is one of `protocol.ERROR_CODES`."""

    def __init__(self, code: str, message: str, usage: EngineUsage | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.usage = usage or EngineUsage(finish="error")


class Hangup(Exception):
    """The asker closed the line, or the model wants it closed."""


@dataclass
class Line:
    """One connection: what a model may remember between requests, and whether anyone still listens."""

    closed: Callable[[], bool]
    inferences: int = 0
    memory: dict[str, Any] = field(default_factory=dict)


class Model(Protocol):
    """What answers. Called from several threads at once, one per line."""

    def token_limit(self) -> int:
        """The longest prompt with its answer, in tokens."""

    def token_count(self, request: Request) -> int:
        """The tokens of a prompt."""

    def infer(self, request: Request, line: Line) -> Generator[bytes, None, EngineUsage]:
        """The answer in pieces of UTF-8 (cut anywhere, free of EOT and NAK); its usage. Raises EngineError, Hangup."""


def serve(model: Model) -> None:
    """Answer on fd 0: a listening socket (one thread per connection), a connected socket, or a terminal or pipe."""
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        _stdio(model)
        return
    own = socket.socket(fileno=os.dup(0))
    if not own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        _connection(model, own)
        return
    while True:
        connection, _ = own.accept()
        threading.Thread(target=_connection, args=(model, connection), daemon=True).start()


def _connection(model: Model, connection: socket.socket) -> None:
    poller = select.poll()
    poller.register(connection, 0)  # reports hang-up only
    line = Line(closed=lambda: bool(poller.poll(0)))
    buffer = bytearray()
    with connection:
        try:
            while (document := _next(connection, buffer)) is not None:
                _answer(model, document, line, connection.sendall)
        except (OSError, Hangup):
            return


def _next(connection: socket.socket, buffer: bytearray) -> bytes | None:
    start = 0
    while (end := buffer.find(protocol.EOT_BYTE, start)) < 0:
        start = len(buffer)
        if start > protocol.MAX_FORWARDED:
            raise Hangup
        part = connection.recv(1 << 18)
        if not part:
            return None
        buffer += part
    document = bytes(memoryview(buffer)[:end])
    del buffer[: end + 1]
    return document


def _answer(model: Model, document: bytes, line: Line, send: Callable[[bytes], object]) -> None:
    from_broker, usage = False, EngineUsage()
    try:
        request = protocol.parse_request(document, protocol.MAX_FORWARDED)
        from_broker = request.seed is not None
        if request.kind == "token_limit":
            send(f"{model.token_limit()}{protocol.EOT}".encode())
        elif request.kind == "token_count":
            send(f"{model.token_count(request)}{protocol.EOT}".encode())
        else:
            line.inferences += 1
            usage = _stream(model.infer(request, line), send)
    except protocol.BadRequest as error:
        usage = EngineUsage(finish="error")
        send(protocol.write_error("bad_request", str(error)))
    except EngineError as error:
        usage = error.usage
        send(protocol.write_error(error.code, str(error)))
    if from_broker:
        send(protocol.write_usage(usage))


def _stream(pieces: Generator[bytes, None, EngineUsage], send: Callable[[bytes], object]) -> EngineUsage:
    try:
        while True:
            try:
                piece = next(pieces)
            except StopIteration as end:
                send(protocol.EOT_BYTE)
                return end.value  # type: ignore[no-any-return]
            send(piece)
    finally:
        pieces.close()  # ends the generation at once where the asker has gone


_COMPLETE = re.compile(rb"(<token_limit[^>]*/>|</(infer_xml|token_count)>)\s*\Z")


def _stdio(model: Model) -> None:
    """For a person: a request ends with its closing tag at the end of a line, or with EOT."""
    line = Line(closed=lambda: False)
    terminal = sys.stdout.isatty()

    def send(data: bytes) -> None:
        shown = data.replace(protocol.EOT_BYTE, b"\n").replace(protocol.NAK_BYTE, b"\nerror: ") if terminal else data
        sys.stdout.buffer.write(shown)
        sys.stdout.buffer.flush()

    buffer = bytearray()
    while part := os.read(0, 1 << 16):
        buffer += part
        if part.endswith(protocol.EOT_BYTE) or _COMPLETE.search(buffer):
            for document in bytes(buffer).split(protocol.EOT_BYTE):
                if document.strip():
                    _answer(model, document, line, send)
            buffer.clear()
