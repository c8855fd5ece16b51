"""The server behind the engine: its errors in the engine protocol's words, its usage, its prices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import openai

from orchestrator.engines.openai.dialects import DIALECTS, Dialect, Kind, dialect_of
from orchestrator.engines.serve import EngineError, Hangup
from orchestrator.errors import ConfigError
from orchestrator.protocol import EngineUsage

DEFAULT_LIMIT = 32768  # tokens, where the server does not tell
_TOO_LONG = ("exceed_context_size", "context_length_exceeded", "maximum context length", "context size", "too long")
Message = dict[str, str]


@dataclass(frozen=True)
class ServerOptions:
    """`retries` are the SDK's, for rate limits, 5xx and lost connections. `kind` None: found out by asking."""

    url: str | None
    model: str
    key_variable: str = "OPENAI_API_KEY"
    kind: Kind | None = None
    limit: int | None = None
    retries: int = 4
    timeout: float = 110.0  # seconds without a byte, less than the broker waits


@dataclass
class Reply:
    """One answer while it comes: all text so far, and at its end how it ended and what it took."""

    text: str = ""
    finish: str | None = None
    usage: EngineUsage = field(default_factory=EngineUsage)


class Unsuitable(EngineError):
    """The server refuses the request as it stands (status 400), but not for its length."""


class ChatServer:
    """A chat server. Thread-safe. Raises ConfigError at once if its key or model name is wrong."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        key = os.environ.get(options.key_variable) or ("none" if options.url else "")
        if not key:
            fix = f"set {options.key_variable}, or name a server that needs no key: --url"
            raise ConfigError("there is no key", where="openai engine", fix=fix)
        self._client = openai.OpenAI(
            base_url=options.url, api_key=key, max_retries=options.retries, timeout=options.timeout
        )
        self._about = self._look()
        chosen = DIALECTS[options.kind] if options.kind else dialect_of(str(self._about.get("owned_by", "")))
        self.dialect: Dialect = chosen
        self.limit = options.limit or self._told_limit()

    def reply(
        self, messages: list[Message], gone: Callable[[], bool], most: int, **more: Any
    ) -> Iterator[tuple[str, Reply]]:
        """The pieces of one answer, each with the whole so far. Raises EngineError, Hangup when nobody listens."""
        whole = Reply()
        try:
            stream = self._client.chat.completions.create(
                model=self._options.model,
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
                **{"max_tokens" if self._options.url else "max_completion_tokens": most},
                **more,
            )
            with stream:
                for event in stream:
                    if gone():
                        raise Hangup
                    if event.usage is not None:
                        whole.usage = self._usage(event.usage)
                    if not event.choices:
                        continue
                    whole.finish = event.choices[0].finish_reason or whole.finish
                    if piece := event.choices[0].delta.content:
                        whole.text += piece
                        yield piece, whole
        except openai.OpenAIError as error:
            raise self._error(error) from None
        except (OSError, ValueError) as error:  # a line that is no JSON; a connection that was reset
            raise EngineError("engine", f"the stream was broken off: {error}") from None
        except Exception as error:
            if not type(error).__module__.startswith("http"):  # the SDK lets its HTTP client's errors through here
                raise
            raise EngineError("engine", f"the stream was broken off: {error}") from None
        if whole.finish is None:
            raise EngineError("engine", "the stream was cut off in mid-answer", whole.usage)
        yield "", whole

    def count(self, messages: list[Message]) -> int | None:
        """The tokens of a prompt, where the server can tell."""
        root = str(self._client.base_url).rstrip("/").removesuffix("/v1")
        client = self._client.with_options(base_url=root, max_retries=1)
        try:
            if self.dialect.kind == "llama.cpp":
                prompt = client.post("/apply-template", body={"messages": messages}, cast_to=object)
                body = {"content": prompt["prompt"], "add_special": True, "parse_special": True}
                return len(client.post("/tokenize", body=body, cast_to=object)["tokens"])
            if self.dialect.kind == "vllm":
                body = {"model": self._options.model, "messages": messages}
                return int(client.post("/tokenize", body=body, cast_to=object)["count"])
        except (openai.OpenAIError, LookupError, TypeError):
            return None
        return None

    def _look(self) -> dict[str, Any]:
        """What the server tells about the model; {} if it tells nothing. Raises ConfigError."""
        try:
            listed = [model.model_dump() for model in self._client.models.list()]
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise self._wrong_key(error) from None
        except openai.OpenAIError as error:
            print(f"openai engine: the server lists no models: {_words(error)}", file=sys.stderr, flush=True)
            return {}
        named = [model for model in listed if self._options.model in (model["id"], *model.get("aliases", ()))]
        if named:
            return dict(named[0])
        if listed and listed[0].get("owned_by") == "llamacpp":
            return dict(listed[0])  # it has one model, whatever it is called
        known = ", ".join(model["id"] for model in listed[:10]) or "none"
        fix = f"name one of these: {known}"
        raise ConfigError(f"the server has no model {self._options.model!r}", where=self._where, fix=fix)

    def _told_limit(self) -> int:
        meta = self._about.get("meta") or {}
        return int(self._about.get("max_model_len") or meta.get("n_ctx") or DEFAULT_LIMIT)

    def _usage(self, usage: Any) -> EngineUsage:
        details = usage.prompt_tokens_details
        cached = details.cached_tokens if details else None
        cost = price(self._options.model, self._options.url, usage.prompt_tokens, usage.completion_tokens, cached)
        return EngineUsage(usage.prompt_tokens, usage.completion_tokens, cached, cost)

    def _error(self, error: openai.OpenAIError) -> EngineError:
        words = _words(error)
        if isinstance(error, (openai.AuthenticationError, openai.PermissionDeniedError)):
            _end(self._wrong_key(error))
        if isinstance(error, openai.NotFoundError):
            fix = "correct the model's name or --url"
            _end(ConfigError(f"the server knows no such model or address: {words}", where=self._where, fix=fix))
        if isinstance(error, openai.RateLimitError):
            return EngineError("engine", f"rate limit, after {self._options.retries} retries: {words}")
        if isinstance(error, openai.InternalServerError):
            return EngineError("engine", f"the server failed, after {self._options.retries} retries: {words}")
        if isinstance(error, openai.BadRequestError):
            too_long = any(mark in words for mark in _TOO_LONG)
            return EngineError("too_long", words) if too_long else Unsuitable("engine", words)
        if isinstance(error, openai.APIConnectionError):
            return EngineError("engine", f"no connection to the server: {words}")
        return EngineError("engine", words)

    @property
    def _where(self) -> str:
        return f"openai engine, {self._client.base_url}"

    def _wrong_key(self, error: openai.OpenAIError) -> ConfigError:
        what = f"the key in {self._options.key_variable} is not accepted: {_words(error)}"
        return ConfigError(what, where=self._where, fix="set a key that may use this model")


def price(model: str, url: str | None, prompt: int, completion: int, cached: int | None) -> float | None:
    """US dollars of one answer; None where the price is not known."""
    from genai_prices import Usage, calc_price

    usage = Usage(input_tokens=prompt, output_tokens=completion, cache_read_tokens=cached or None)
    try:
        if url is None:
            return float(calc_price(usage, model, provider_id="openai").total_price)
        return float(calc_price(usage, model, provider_api_url=url).total_price)
    except (LookupError, ValueError):
        return None


def _words(error: openai.OpenAIError) -> str:
    body = getattr(error, "body", None)
    inner = body.get("message") if isinstance(body, dict) else None
    code = getattr(error, "status_code", None)
    return " ".join(f"{f'status {code}: ' if code else ''}{inner or error}".split())[:300]


def _end(error: ConfigError) -> NoReturn:
    """End the program: no request can succeed, and only an engine that answers nobody is no instance's fault."""
    print(error.render(), file=sys.stderr, flush=True)
    os._exit(error.exit_code)
