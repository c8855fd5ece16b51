"""The other end of an engine line, played by the conformance check: it sees every request and chooses every answer."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass

from orchestrator.protocol import EOT_BYTE, MAX_REQUEST, NAK, BadRequest, Request, parse_request

TOKEN_LIMIT = 32768
MAX_FAULTS = 20  # requests that can't be understood, then this end gives up
_NOT_TEXT = str.maketrans({"\x04": "\ufffd", "\x15": "\ufffd"})


class Silent(Exception):
    """The instance sent no request in time, or closed its line."""


@dataclass(frozen=True)
class Prompt:
    """One request for an answer: what the instance showed, as one text."""

    system: str
    text: str


class Peer:
    """Has what `Instance.start` needs of a line: `instance_end` and `first_request`."""

    def __init__(self) -> None:
        self.instance_end, self._line = socket.socketpair()
        self.first_request = threading.Event()
        self.faults: list[str] = []  # requests that were none, in words
        self.prompts: list[Prompt] = []
        self.given: list[str] = []  # answers to them
        self.early = False  # whether a request came before the one before it was answered
        self._rest = b""

    def prompt(self, seconds: float) -> Prompt:
        """The next request for an answer; counts and limits on the way are answered. Raises Silent."""
        end = time.monotonic() + seconds
        while True:
            document = self._receive(end)
            try:
                request = parse_request(document)
            except BadRequest as error:
                self.faults.append(str(error))
                self.error("bad_request", str(error))
                if len(self.faults) >= MAX_FAULTS:
                    raise Silent(f"{MAX_FAULTS} requests were none of the protocol: {error}") from None
                continue
            if request.kind == "infer_xml":
                self.prompts.append(_prompt(request))
                return self.prompts[-1]
            self._reply(str(TOKEN_LIMIT if request.kind == "token_limit" else len(document) // 4))

    def answer(self, text: str) -> None:
        """Give an answer, as an engine would stream it."""
        self.given.append(text.translate(_NOT_TEXT))
        self._reply(text)

    def _reply(self, text: str) -> None:
        self._send(text.translate(_NOT_TEXT).encode("utf-8", "replace") + EOT_BYTE)

    def error(self, code: str, message: str) -> None:
        """Give a typed error."""
        self._send(f"{NAK}{code} {message.translate(_NOT_TEXT)}".encode() + EOT_BYTE)

    def close(self) -> None:
        """End the line."""
        self._line.close()
        self.instance_end.close()

    def _send(self, data: bytes) -> None:
        self.early = self.early or self._waiting()
        try:
            self._line.settimeout(5.0)
            self._line.sendall(data)
        except OSError as error:
            raise Silent(f"it does not read its engine line ({error})") from None

    def _waiting(self) -> bool:
        """Whether something was sent that comes too early: what it asks for can't depend on the reply yet."""
        self._line.setblocking(False)  # with a timeout, recv(2) would wait for it
        try:
            return bool(self._line.recv(65536, socket.MSG_PEEK).strip())
        except OSError:
            return False

    def _receive(self, end: float) -> bytes:
        parts, size = [self._rest], len(self._rest)
        while EOT_BYTE not in parts[-1]:
            self._line.settimeout(max(0.001, end - time.monotonic()))
            try:
                data = self._line.recv(65536)
            except TimeoutError:
                raise Silent("no request came in time") from None
            except OSError as error:
                raise Silent(f"the engine line broke ({error})") from None
            if not data:
                raise Silent("it closed its engine line")
            self.first_request.set()
            size += len(data)
            if size > MAX_REQUEST + 65536:
                raise Silent(f"a request of more than {MAX_REQUEST} bytes")
            parts.append(data)
        document, _, self._rest = b"".join(parts).partition(EOT_BYTE)
        self.early = self.early or bool(self._rest.strip())
        return document


def _prompt(request: Request) -> Prompt:
    turns = "\n".join(turn.text for turn in request.turns)
    return Prompt(request.system, turns if request.context is None else request.context)
