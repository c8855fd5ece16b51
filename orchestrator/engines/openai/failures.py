"""A server's failures in the engine protocol's words, and which of them are worth another try."""

from __future__ import annotations

import random
import time
from email.utils import parsedate_to_datetime

import openai

from orchestrator.engines.serve import EngineError
from orchestrator.protocol import EngineUsage

_TOO_LONG = ("exceed_context_size", "context_length_exceeded", "maximum context length", "context size", "too long")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0  # seconds, where the server names none
_AGAIN = (408, 409, 429)  # statuses, beside all from 500 up


class Unsuitable(EngineError):
    """The server refuses the request as it stands (status 400), but not for its length."""


class Unkept(Unsuitable):
    """The server took a grammar and answers without it."""

    def __init__(self, usage: EngineUsage) -> None:
        super().__init__("engine", "the server does not keep to the grammar", usage)


class BrokenOff(EngineError):
    """It failed after the server had begun to work, or may have: `text` came until then. What it took has a price."""

    def __init__(self, message: str, text: str, usage: EngineUsage) -> None:
        super().__init__("engine", message, usage)
        self.text = text


def pause(error: Exception, tried: int) -> float | None:
    """Seconds to wait until the request is sent again, as the server says; None: it would fail again."""
    if isinstance(error, openai.APIConnectionError):
        return _usual_pause(tried)
    if not isinstance(error, openai.APIStatusError):
        return None
    headers = error.response.headers
    told = headers.get("x-should-retry")
    if told == "false" or (told != "true" and error.status_code not in _AGAIN and error.status_code < 500):
        return None
    asked = _asked_pause(headers.get("retry-after-ms"), headers.get("retry-after"))
    return _usual_pause(tried) if asked is None else asked


def _usual_pause(tried: int) -> float:
    longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(tried, 10))
    return longest * (1 - 0.25 * random.random())


def _asked_pause(milliseconds: str | None, after: str | None) -> float | None:
    """What `Retry-After` asks for: seconds or a date. None if it is not there or makes no sense."""
    for value, unit in ((milliseconds, 0.001), (after, 1.0)):
        try:
            seconds = float(value or "") * unit
        except ValueError:
            continue
        if seconds >= 0:  # not NaN
            return seconds
    try:
        return max(0.0, parsedate_to_datetime(after or "").timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def outcome(error: Exception, tried: int, asked: float | None) -> EngineError:
    """What the asker is told after `tried` tries again; `asked`: the server wants a wait of so many seconds, and there
    is no time for it."""
    words, times = said(error), f"after {tried} {'retry' if tried == 1 else 'retries'}"
    if asked is not None:
        times += f", and it is {asked:.3g} s to the next"
    if isinstance(error, openai.RateLimitError):
        return EngineError("engine", f"rate limit, {times}: {words}")
    if isinstance(error, openai.InternalServerError):
        return EngineError("engine", f"the server failed, {times}: {words}")
    if isinstance(error, openai.BadRequestError):
        too_long = any(mark in words for mark in _TOO_LONG)
        return EngineError("too_long", words) if too_long else Unsuitable("engine", words)
    if isinstance(error, openai.APIConnectionError):
        return EngineError("engine", f"no connection to the server, {times}: {words}")
    return EngineError("engine", words)


def said(error: Exception) -> str:
    """A server's own words, on one line."""
    body = getattr(error, "body", None)
    inner = body.get("message") if isinstance(body, dict) else None
    code = getattr(error, "status_code", None)
    return " ".join(f"{f'status {code}: ' if code else ''}{inner or str(error) or type(error).__name__}".split())[:300]
