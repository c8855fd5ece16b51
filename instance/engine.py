"""The agent's side of the engine protocol."""

from __future__ import annotations

import codecs
import select
import socket
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from instance.errors import Cancelled, EngineError, EngineLost
from instance.lines import Line
from instance.signals import Interrupt
from instance.text import embed

_EOT, _NAK = "\x04", "\x15"
_CHUNK = 65_536
_NUMBER_MAX = 1_000  # characters of a reply that should be a number, or of an error


class Turn(NamedTuple):
    """One turn of a conversation, for a renderer that makes several; `role` is `user` or `assistant`."""

    role: str
    text: str


class LlmEngine:
    """Sends one request at a time and reads its reply. Typed errors are raised as EngineError.

    After Cancelled, EngineLost, or an iterator of `infer` that was not read to its end, the line is out of step:
    call `restart` before the next request.
    """

    def __init__(self, line: Line, schema_path: str, interrupt: Interrupt) -> None:
        self._line, self._schema_path, self._interrupt = line, schema_path, interrupt
        self._socket = self._prepare(line.open())
        self._poll = select.poll()
        self._rest = ""

    def infer(self, system_prompt: str, main_context: str | Sequence[Turn], prefix: str = "") -> Iterator[str]:
        """The answer, piece by piece, `prefix` first (the engine does not repeat it)."""
        self._send(self._request("infer_xml", system_prompt, main_context, prefix))
        if prefix:
            yield prefix
        yield from self._reply()

    def token_count(self, system_prompt: str, main_context: str | Sequence[Turn], prefix: str = "") -> int:
        """How many tokens a prompt has."""
        self._send(self._request("token_count", system_prompt, main_context, prefix))
        return self._number()

    def token_limit(self) -> int:
        """How many tokens a prompt and its answer may have."""
        self._send("<token_limit/>")
        return self._number()

    def restart(self) -> None:
        """A new line. Raises EngineLost if there is none to be had."""
        self._socket.close()
        self._rest = ""
        self._socket = self._prepare(self._line.reopen())

    def close(self) -> None:
        """End the line; a generation that runs is cancelled."""
        self._socket.close()
        self._line.close()

    @staticmethod
    def _prepare(line: socket.socket) -> socket.socket:
        line.setblocking(False)
        return line

    def _request(self, name: str, system: str, context: str | Sequence[Turn], prefix: str) -> str:
        head = f"<{name}>\n<schema>{embed(self._schema_path)}</schema>\n<system>{embed(system)}</system>\n"
        if isinstance(context, str):
            body = f"<context>{embed(context)}</context>\n"
        else:
            body = "".join(f'<turn role="{turn.role}">{embed(turn.text)}</turn>\n' for turn in context)
        tail = f"<prefix>{embed(prefix)}</prefix>\n" if prefix else ""
        return f"{head}{body}{tail}</{name}>"

    def _send(self, document: str) -> None:
        view = memoryview((document + _EOT).encode())
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)
            except OSError as error:
                raise EngineLost(f"the line to the engine broke: {error}") from error

    def _number(self) -> int:
        text = ""
        for piece in self._reply():
            text += piece
            if len(text) > _NUMBER_MAX:
                raise EngineLost("the engine answers a count with a long text")
        try:
            return int(text)
        except ValueError:
            raise EngineError("engine", f"expected a number, got {text[:80]!r}") from None

    def _reply(self) -> Iterator[str]:
        """The pieces of one reply up to its EOT. A NAK turns what follows into an error."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        error: str | None = None
        text, self._rest = self._rest, ""
        while True:
            text, end, rest = text.partition(_EOT)
            if error is None:
                text, turned, begun = text.partition(_NAK)
                if text:
                    yield text
                error = begun if turned else None
            else:
                error = (error + text)[:_NUMBER_MAX]
            if end:
                self._rest = rest
                break
            text = decoder.decode(self._receive())
        if error is not None:
            code, _, message = error.strip().partition(" ")
            raise EngineError(code, message)

    def _receive(self) -> bytes:
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            except OSError as error:
                raise EngineLost(f"the line to the engine broke: {error}") from error
            if not data:
                raise EngineLost("the engine closed the line")
            return data

    def _wait(self, event: int) -> None:
        """Wait for the socket; raises Cancelled when a signal's time is over."""
        self._poll.register(self._socket, event)
        self._poll.register(self._interrupt, select.POLLIN)
        while True:
            deadline = self._interrupt.answer_deadline()
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = self._poll.poll(left)
            if any(descriptor == self._socket.fileno() for descriptor, _ in ready):
                self._poll.unregister(self._socket)
                return
            self._interrupt.drain()
            if left == 0:
                self._poll.unregister(self._socket)
                raise Cancelled("asked to end; the answer did not come in time")
