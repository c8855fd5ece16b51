"""What answers on a line: a local model, guided by the schema."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from orchestrator.engines.guided import Guides
from orchestrator.engines.llama.prompt import PromptTokens
from orchestrator.engines.llama.server import LlamaServer
from orchestrator.engines.serve import EngineError, Hangup, Line
from orchestrator.protocol import EngineUsage, Request, clean

_ANSWER = 1024  # tokens, where a request names no limit


class LlamaModel:
    """Implements `engines.serve.Model`. Thread-safe.

    `temperature` as the sampler takes it; `cdata` False: guided answers hold no CDATA section (small models tend to end
    one like an element, and run on).
    """

    def __init__(self, server: LlamaServer, *, temperature: float = 0.7, cdata: bool = True) -> None:
        self._server, self._temperature = server, temperature
        self._prompts = PromptTokens(server)
        self._guides = Guides("llama engine", cdata=cdata)

    def token_limit(self) -> int:
        """What one request may have, prompt and answer."""
        return self._server.limit

    def token_count(self, request: Request) -> int:
        """The tokens of a prompt, template included."""
        return len(self._prompts.of(request))

    def infer(self, request: Request, line: Line) -> Generator[bytes, None, EngineUsage]:
        """The answer in pieces, with what ends it if it was cut off."""
        prompt = self._prompts.of(request)
        room = self._server.limit - len(prompt)
        if room < 1:
            raise EngineError("too_long", f"{len(prompt)} tokens, at most {self._server.limit - 1} are taken")
        prefix = request.prefix.lstrip()
        found, unguided = self._guides.of(request.schema, prefix)
        body = {
            "prompt": prompt,
            "n_predict": min(request.max_tokens or _ANSWER, room),
            "temperature": self._temperature,
            "seed": (request.seed or 0) & 0x7FFFFFFF,
            "cache_prompt": True,
        }
        if found is not None:
            body["grammar"] = found.grammar(prefix)
        written, last = yield from self._written(body, line)
        usage = replace(_usage(last, len(prompt)), unguided=unguided)
        if found is None:
            return usage
        if usage.finish == "length" and (ending := found.ending(prefix, written.encode())):
            written += ending[1]
            yield ending[1].encode()
        if fault := self._guides.fault(request.schema, prefix + written):
            self._guides.note(f"a guided answer is not valid: {fault}")
        return usage

    def _written(self, body: dict[str, Any], line: Line) -> Generator[bytes, None, tuple[str, dict[str, Any]]]:
        """All text and the last event. Ends the generation when nobody listens any more."""
        written, last = [], {}
        events = self._server.stream(body)
        try:
            for last in events:
                if line.closed():
                    raise Hangup
                if text := clean(last.get("content", "")):
                    written.append(text)
                    yield text.encode("utf-8", "replace")
        finally:
            events.close()
        return "".join(written), last


def _usage(last: dict[str, Any], prompt: int) -> EngineUsage:
    timings = last.get("timings", {})
    return EngineUsage(
        prompt=prompt,
        completion=int(last.get("tokens_predicted", 0)),
        cached=int(timings.get("cache_n", 0)),
        cost=0.0,
        finish="length" if last.get("stop_type") == "limit" else "stop",
    )
