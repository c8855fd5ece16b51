"""The server behind the engine: its errors in the engine protocol's words, its usage, its prices."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import openai

from orchestrator.engines.openai.calls import Calls, Late, Wait
from orchestrator.engines.openai.dialects import DIALECTS, Dialect, Kind, dialect_of
from orchestrator.engines.openai.failures import BrokenOff, outcome, pause, said
from orchestrator.errors import ConfigError
from orchestrator.protocol import EngineUsage
from orchestrator.untrusted import printable

DEFAULT_LIMIT = 32768  # tokens, where the server does not tell
PATIENCE = 110.0  # seconds; the broker waits 120 for a byte and then knows no reason
_COUNTING = 20.0  # seconds for a count; then an estimate has to do
_CONNECTING = 10.0  # seconds for a connection
Message = dict[str, str]


@dataclass(frozen=True)
class ServerOptions:
    """`retries`: of requests that hit a rate limit, 5xx or no connection. `kind` None: found out by asking.

    `patience`: seconds without a byte for the asker, after which it is told a reason; all tries are within them.
    """

    url: str | None
    model: str
    key_variable: str = "OPENAI_API_KEY"
    kind: Kind | None = None
    limit: int | None = None
    retries: int = 4
    patience: float = PATIENCE


@dataclass
class Reply:
    """One answer while it comes: all text so far, and at its end how it ended and what it took."""

    text: str = ""
    finish: str | None = None
    usage: EngineUsage = field(default_factory=EngineUsage)
    begun: bool = False  # the server has taken the request on


class ChatServer:
    """A chat server. Thread-safe. Raises ConfigError at once if its key or model name is wrong."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        key = os.environ.get(options.key_variable) or ("none" if options.url else "")
        if not key:
            fix = f"set {options.key_variable}, or name a server that needs no key: --url"
            raise ConfigError("there is no key", where="openai engine", fix=fix)
        patience = openai.Timeout(options.patience, connect=min(_CONNECTING, options.patience))
        self._client = openai.AsyncOpenAI(base_url=options.url, api_key=key, max_retries=0, timeout=patience)
        self._calls = Calls()
        self._about = self._look()
        chosen = DIALECTS[options.kind] if options.kind else dialect_of(str(self._about.get("owned_by", "")))
        self.dialect: Dialect = chosen
        self.limit = options.limit or self._told_limit()

    @property
    def patience(self) -> float:
        """Seconds that an asker waits for a byte."""
        return self._options.patience

    def reply(
        self, messages: list[Message], wait: Wait, most: int, **more: Any
    ) -> Generator[tuple[str, Reply], None, Reply]:
        """The pieces of one answer, each with the whole so far; returns the whole.

        Raises EngineError (BrokenOff where it has cost something), and Hangup when nobody listens.
        """
        fields = {
            "model": self._options.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens" if self._options.url else "max_completion_tokens": most,
            **more,
        }
        tried = 0
        while True:
            whole = Reply()
            try:
                yield from self._pieces(fields, wait, whole)
                break
            except Late:
                what = "nothing of an answer that could be passed on" if whole.begun else "no answer from the server"
                raise BrokenOff(f"{what} in {wait.patience:g} s", whole.text, whole.usage) from None
            except Exception as error:
                if not isinstance(error, (openai.OpenAIError, OSError, ValueError)) and not _of_client(error):
                    raise
                if whole.begun:  # also a line that is no JSON
                    raise BrokenOff(f"the stream was broken off: {said(error)}", whole.text, whole.usage) from None
                self._rest(error, tried, wait)
                tried += 1
        if whole.finish is None:
            raise BrokenOff("the stream was cut off in mid-answer", whole.text, whole.usage)
        yield "", whole
        return whole

    def _pieces(self, fields: dict[str, Any], wait: Wait, whole: Reply) -> Generator[tuple[str, Reply], None, None]:
        for event in self._calls.each(self._events(fields), wait):
            whole.begun = True
            if event is None:
                continue
            if event.usage is not None:
                whole.usage = self._usage(event.usage)
            if not event.choices:
                continue
            whole.finish = event.choices[0].finish_reason or whole.finish
            if piece := event.choices[0].delta.content:
                whole.text += piece
                yield piece, whole

    async def _events(self, fields: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """None as soon as the server has taken the request on, then what it sends."""
        async with await self._client.chat.completions.create(**fields) as stream:
            yield None
            async for event in stream:
                yield event

    def _rest(self, error: Exception, tried: int, wait: Wait) -> None:
        """Wait until it is worth another try. Raises EngineError if it is not, or if there is no time for it."""
        if isinstance(error, (openai.AuthenticationError, openai.PermissionDeniedError)):
            _end(self._wrong_key(error))
        if isinstance(error, openai.NotFoundError):
            fix = "correct the model's name or --url"
            _end(ConfigError(f"the server knows no such model or address: {said(error)}", where=self._where, fix=fix))
        seconds = pause(error, tried)
        if seconds is None or tried >= self._options.retries:
            raise outcome(error, tried, None) from None
        if seconds >= wait.left:
            raise outcome(error, tried, seconds) from None
        try:
            wait.rest(seconds)
        except Late:
            raise outcome(error, tried, seconds) from None

    def count(self, messages: list[Message], wait: Wait | None = None) -> int | None:
        """The tokens of a prompt, where the server can tell. Raises Hangup."""
        if self.dialect.kind not in ("llama.cpp", "vllm"):
            return None
        within = wait.within(_COUNTING) if wait else Wait(min(_COUNTING, self.patience))
        try:
            return next(self._calls.each(self._counted(messages), within))
        except (openai.OpenAIError, LookupError, TypeError, ValueError, Late):
            return None

    async def _counted(self, messages: list[Message]) -> AsyncGenerator[int, None]:
        root = str(self._client.base_url).rstrip("/").removesuffix("/v1")
        client = self._client.with_options(base_url=root, max_retries=1)
        if self.dialect.kind == "vllm":
            asked = {"model": self._options.model, "messages": messages}
            yield int((await client.post("/tokenize", body=asked, cast_to=object))["count"])
            return
        prompt = await client.post("/apply-template", body={"messages": messages}, cast_to=object)
        body = {"content": prompt["prompt"], "add_special": True, "parse_special": True}
        yield len((await client.post("/tokenize", body=body, cast_to=object))["tokens"])

    def _look(self) -> dict[str, Any]:
        """What the server tells about the model; {} if it tells nothing. Raises ConfigError."""
        try:
            listed = self._listed()
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise self._wrong_key(error) from None
        except (openai.OpenAIError, Late) as error:
            print(f"openai engine: the server lists no models: {said(error)}", file=sys.stderr, flush=True)
            return {}
        named = [model for model in listed if self._options.model in (model["id"], *model.get("aliases", ()))]
        if named:
            return dict(named[0])
        if listed and listed[0].get("owned_by") == "llamacpp":
            return dict(listed[0])  # it has one model, whatever it is called
        known = ", ".join(model["id"] for model in listed[:10]) or "none"
        fix = f"name one of these: {known}"
        raise ConfigError(f"the server has no model {self._options.model!r}", where=self._where, fix=fix)

    def _listed(self) -> list[dict[str, Any]]:
        """All models. Raises OpenAIError, Late."""
        wait, tried = Wait(self.patience), 0

        async def listing() -> AsyncGenerator[dict[str, Any], None]:
            async for model in self._client.models.list():
                yield model.model_dump()

        while True:
            try:
                return list(self._calls.each(listing(), wait))
            except openai.OpenAIError as error:
                seconds = pause(error, tried)
                if seconds is None or tried >= self._options.retries or seconds >= wait.left:
                    raise
                wait.rest(seconds)
                tried += 1

    def _told_limit(self) -> int:
        meta = self._about.get("meta") or {}
        return int(self._about.get("max_model_len") or meta.get("n_ctx") or DEFAULT_LIMIT)

    def _usage(self, usage: Any) -> EngineUsage:
        details = usage.prompt_tokens_details
        cached = details.cached_tokens if details else None
        cost = price(self._options.model, self._options.url, usage.prompt_tokens, usage.completion_tokens, cached)
        return EngineUsage(usage.prompt_tokens, usage.completion_tokens, cached, cost)

    @property
    def _where(self) -> str:
        return f"openai engine, {self._client.base_url}"

    def _wrong_key(self, error: openai.OpenAIError) -> ConfigError:
        what = f"the key in {self._options.key_variable} is not accepted: {said(error)}"
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


def _of_client(error: Exception) -> bool:
    """The SDK lets errors of its HTTP client through while it streams."""
    return type(error).__module__.startswith(("http", "anyio"))


def _end(error: ConfigError) -> NoReturn:
    """End the program: no request can succeed, and only an engine that answers nobody is no instance's fault."""
    print(printable(error.render()), file=sys.stderr, flush=True)  # a server's words are in it
    os._exit(error.exit_code)
