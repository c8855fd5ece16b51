"""What prompts and answers take in tokens: counted by the server where it can, else estimated."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

from orchestrator.engines.openai.calls import Wait
from orchestrator.engines.openai.failures import BrokenOff
from orchestrator.engines.openai.server import ChatServer, Message
from orchestrator.engines.serve import EngineError
from orchestrator.protocol import EngineUsage

_PER_TOKEN = 3.5  # characters, until the server's usage says more
_FRAME = 64  # tokens that a chat template may add to a message, at most
_MARGIN = (
    16  # tokens between a counted prompt with its answer and the limit: templates end an answer's prompt otherwise
)
_DOUBT = 8  # an estimate may be short of the truth by one part in so many


class Sizes:
    """Sizes of one server's prompts. Thread-safe."""

    def __init__(self, server: ChatServer) -> None:
        self._server = server
        self._per_token = _PER_TOKEN
        self._lock = threading.Lock()

    def count(self, messages: list[Message]) -> int:
        """The tokens of a prompt."""
        counted = self._server.count(messages)
        return self._estimate(messages) if counted is None else counted

    def room(self, messages: list[Message], wanted: int, wait: Wait) -> int:
        """How many tokens an answer may have, at least 1: prompt and answer together must stay below the limit, else
        servers refuse the request. Raises Hangup."""
        limit = self._server.limit
        longest = sum(len(message["content"].encode("utf-8", "replace")) + _FRAME for message in messages) + _FRAME
        if limit - longest >= wanted:  # no text has more tokens than bytes, so nobody has to count
            return wanted
        counted = self._server.count(messages, wait)
        if counted is None:
            counted = math.ceil(self._estimate(messages) * (1 + 1 / _DOUBT))
        return max(1, min(wanted, limit - counted - _MARGIN))

    def learn(self, messages: list[Message], usage: EngineUsage) -> None:
        """Take the server's number for a prompt as the measure of later estimates."""
        if usage.prompt:
            with self._lock:
                self._per_token = max(1.0, _size(messages) / usage.prompt)

    def filled(self, usage: EngineUsage, messages: list[Message], text: str) -> EngineUsage:
        """The usage of an answer that broke off: what the server had no time to tell is estimated; a cost is not."""
        prompt = self._estimate(messages) if usage.prompt is None else usage.prompt
        completion = math.ceil(len(text) / self._per_token) if usage.completion is None else usage.completion
        return replace(usage, prompt=prompt, completion=completion, finish="error")

    def of_failure(self, error: EngineError, messages: list[Message]) -> EngineUsage:
        """What a request took that failed: nothing if the server refused it."""
        return self.filled(error.usage, messages, error.text) if isinstance(error, BrokenOff) else error.usage

    def _estimate(self, messages: list[Message]) -> int:
        return math.ceil(_size(messages) / self._per_token)


def _size(messages: list[Message]) -> int:
    return sum(len(message["content"]) + 8 for message in messages)


def summed(a: EngineUsage | None, b: EngineUsage) -> EngineUsage:
    """Two requests as one; what is unknown of one is unknown of both. A refusal, which tells nothing, took nothing."""
    if a is None or _nothing(a):
        return b
    if _nothing(b):
        return replace(a, finish="error")
    cost = None if a.cost is None or b.cost is None else a.cost + b.cost
    return EngineUsage(
        _added(a.prompt, b.prompt), _added(a.completion, b.completion), _added(a.cached, b.cached), cost, b.finish
    )


def _nothing(usage: EngineUsage) -> bool:
    return usage.finish == "error" and usage.prompt is None


def _added(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
