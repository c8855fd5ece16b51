"""From a request to token ids: the model's own chat template around text that it can't be broken by."""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence

from orchestrator.engines.llama.server import LlamaServer
from orchestrator.engines.serve import EngineError
from orchestrator.protocol import Request

_KEPT_BYTES = 4 << 20  # of texts whose tokens are remembered
_KEPT_TEMPLATES = 64


class PromptTokens:
    """Token ids of prompts. Thread-safe.

    The template is applied to stand-ins, which are then replaced by the tokens of the texts: only what the template
    itself writes becomes special tokens.
    """

    def __init__(self, server: LlamaServer) -> None:
        self._server = server
        self._mark = f"T{secrets.token_hex(8)}N"
        self._lock = threading.Lock()
        self._tokens: OrderedDict[tuple[str, bool, bool], list[int]] = OrderedDict()
        self._size = 0
        self._templates: dict[tuple[str, ...], list[str]] = {}

    def of(self, request: Request) -> list[int]:
        """The prompt of a request, with the prefix as the beginning of the answer. Raises EngineError."""
        roles, texts = _messages(request)
        pieces = self._template(roles)
        found: list[int] = []
        for number, piece in enumerate(pieces):
            if number % 2:
                found += self._tokenised(texts[int(piece)])
            elif piece:
                found += self._tokenised(piece, special=True, first=number == 0)
        return found + (self._tokenised(request.prefix) if request.prefix else [])

    def _template(self, roles: Sequence[str]) -> list[str]:
        """What the template writes between texts, and in between the numbers of the texts, in turn."""
        with self._lock:
            known = self._templates.get(tuple(roles))
        if known is not None:
            return known
        messages = [{"role": role, "content": f"{self._mark}{n}E"} for n, role in enumerate(roles)]
        written = str(self._server.ask("POST", "/apply-template", {"messages": messages})["prompt"])
        pieces = re.split(rf"{self._mark}(\d+)E", written)
        if [int(number) for number in pieces[1::2]] != list(range(len(roles))):
            raise EngineError("engine", "the model's chat template does not show every turn once")
        with self._lock:
            if len(self._templates) >= _KEPT_TEMPLATES:
                self._templates.clear()
            self._templates[tuple(roles)] = pieces
        return pieces

    def _tokenised(self, text: str, *, special: bool = False, first: bool = False) -> list[int]:
        key = text, special, first
        with self._lock:
            if key in self._tokens:
                self._tokens.move_to_end(key)
                return self._tokens[key]
        body = {"content": text, "parse_special": special, "add_special": first}
        tokens: list[int] = self._server.ask("POST", "/tokenize", body)["tokens"]
        with self._lock:
            if key not in self._tokens:
                self._tokens[key] = tokens
                self._size += len(text)
            while self._size > _KEPT_BYTES:
                self._size -= len(self._tokens.popitem(last=False)[0][0])
        return tokens


def _messages(request: Request) -> tuple[list[str], list[str]]:
    """Roles and texts. A system text comes first; a context is the user's."""
    roles, texts = (["system"], [request.system]) if request.system else ([], [])
    if request.context is not None:
        return [*roles, "user"], [*texts, request.context]
    return roles + [turn.role for turn in request.turns], texts + [turn.text for turn in request.turns]
