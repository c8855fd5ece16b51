"""What answers on a line: a chat server, guided by a grammar where it takes one, else checked and asked again."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from orchestrator.engines.guided import Guides
from orchestrator.engines.openai.repair import meant, unwrapped
from orchestrator.engines.openai.server import ChatServer, Message, Reply, Unsuitable
from orchestrator.engines.serve import Hangup, Line
from orchestrator.engines.xml_schema_validator import Guide
from orchestrator.protocol import EngineUsage, Request, clean

_ANSWER = 1024  # tokens, where a request names no limit
_AGAIN = (
    "That answer is not valid: {fault}. Answer again with one valid action and nothing else around it: no code fence, "
    "no explanation."
)


class ChatModel:
    """Implements `engines.serve.Model`. Thread-safe. `attempts`: answers asked for until one is valid, at most."""

    def __init__(self, server: ChatServer, *, attempts: int = 3, temperature: float | None = None) -> None:
        self._server, self._attempts, self._temperature = server, attempts, temperature
        self._guides = Guides("openai engine")
        self._ignores_grammars = False
        self._per_token = 3.5  # characters of a prompt, learnt from usage
        self._lock = threading.Lock()

    def token_limit(self) -> int:
        """What one request may have, prompt and answer."""
        return self._server.limit

    def token_count(self, request: Request) -> int:
        """The tokens of a prompt: the server's number if it can count, else an estimate by what prompts took so far."""
        messages = _messages(request)
        counted = self._server.count(messages)
        return math.ceil(_size(messages) / self._per_token) if counted is None else counted

    def infer(self, request: Request, line: Line) -> Generator[bytes, None, EngineUsage]:
        """The answer in pieces; in one piece where no grammar guides it."""
        prefix = request.prefix.lstrip()
        guide = self._guides.of(request.schema, prefix)
        if not request.schema:
            return (yield from self._unguided(request, line))
        if guide is not None and self._server.dialect.guides and not self._ignores_grammars:
            usage = yield from self._guided(request, line, guide, prefix)
            if usage is not None:
                return usage
        return (yield from self._until_valid(request, line, guide, prefix))

    def _guided(
        self, request: Request, line: Line, guide: Guide, prefix: str
    ) -> Generator[bytes, None, EngineUsage | None]:
        """An answer under a grammar; None if the server does not keep to it and nothing was passed on yet."""
        state, passed, whole = guide.automaton.walk(prefix), "", Reply()
        try:
            for piece, whole in self._replies(request, line, grammar=guide.grammar(prefix)):
                state = guide.automaton.walk(piece, state or 0)
                if state is None:
                    raise Unsuitable("engine", "the server does not keep to the grammar", whole.usage)
                passed += piece
                if piece:
                    yield piece.encode()
        except Unsuitable as error:
            if passed:
                raise
            self._guides.note(f"no grammars from now on, answers are checked and asked for again: {error}")
            self._ignores_grammars = True
            return None
        ending = guide.ending(prefix, passed.encode())
        if whole.finish == "length" and ending and ending[1]:
            yield ending[1].encode()
            passed += ending[1]
        if fault := self._guides.fault(request.schema, prefix + passed):
            self._guides.note(f"a guided answer is not valid: {fault}")
        return self._learnt(request, whole)

    def _until_valid(
        self, request: Request, line: Line, guide: Guide | None, prefix: str
    ) -> Generator[bytes, None, EngineUsage]:
        """Ask, check, ask again with what is wrong. The last answer is given as it is: the agent sees what came."""
        used: EngineUsage | None = None
        more: list[Message] = []
        answer, whole = "", Reply()

        def fault(text: str) -> str | None:
            return self._guides.fault(request.schema, text)

        for attempt in range(self._attempts):
            whole = Reply()
            for _, latest in self._replies(request, line, more=more, seed_step=attempt):
                whole = latest
            used = _sum(used, self._learnt(request, whole))
            answer = unwrapped(whole.text, request.prefix, fault)
            if whole.finish == "length" and guide and (ending := guide.ending(prefix, answer.encode())):
                answer += ending[1]
            if fault((request.prefix + answer).strip()) is None:
                break
            wrong = fault(meant(whole.text, request.prefix)) or "it is not the action alone"
            more += [{"role": "assistant", "content": whole.text or "(nothing)"}]
            more += [{"role": "user", "content": _AGAIN.format(fault=wrong)}]
        yield clean(answer).encode("utf-8", "replace")
        return used or EngineUsage()

    def _unguided(self, request: Request, line: Line) -> Generator[bytes, None, EngineUsage]:
        whole = Reply()
        for piece, latest in self._replies(request, line):
            whole = latest
            yield clean(piece).encode("utf-8", "replace")
        return self._learnt(request, whole)

    def _replies(
        self,
        request: Request,
        line: Line,
        *,
        grammar: str | None = None,
        more: list[Message] | None = None,
        seed_step: int = 0,
    ) -> Generator[tuple[str, Reply], None, None]:
        prefills = self._server.dialect.prefills and bool(request.prefix) and not more
        messages = [*_messages(request, prefills=prefills), *(more or [])]
        options: dict[str, Any] = {"most": min(request.max_tokens or _ANSWER, self._server.limit)}
        if request.seed is not None:
            options["seed"] = (request.seed + seed_step) & 0x7FFFFFFF
        if self._temperature is not None:
            options["temperature"] = self._temperature
        options["extra_body"] = self._server.dialect.extra(grammar, prefills)
        if line.closed():
            raise Hangup
        yield from self._server.reply(messages, line.closed, **options)

    def _learnt(self, request: Request, whole: Reply) -> EngineUsage:
        usage = replace(whole.usage, finish="length" if whole.finish == "length" else "stop")
        if usage.prompt:
            with self._lock:
                self._per_token = max(1.0, _size(_messages(request)) / usage.prompt)
        return usage


def _messages(request: Request, *, prefills: bool = False) -> list[Message]:
    """The conversation. A prefix is the beginning of the last message where the server goes on with it, else a wish."""
    messages = [{"role": "system", "content": request.system}] if request.system else []
    if request.context is not None:
        messages.append({"role": "user", "content": request.context})
    messages += [{"role": turn.role, "content": turn.text} for turn in request.turns]
    if request.prefix and prefills:
        messages.append({"role": "assistant", "content": request.prefix})
    elif request.prefix:
        wish = f"Begin your answer with exactly this, and go on from there:\n{request.prefix}"
        if messages[-1]["role"] == "user":
            messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n\n{wish}"}
        else:
            messages.append({"role": "user", "content": wish})
    return messages


def _size(messages: list[Message]) -> int:
    return sum(len(message["content"]) + 8 for message in messages)


def _sum(a: EngineUsage | None, b: EngineUsage) -> EngineUsage:
    """Two answers as one; what is unknown of one is unknown of both."""
    if a is None:
        return b

    def added(x: Any, y: Any) -> Any:
        return None if x is None or y is None else x + y

    return EngineUsage(
        added(a.prompt, b.prompt),
        added(a.completion, b.completion),
        added(a.cached, b.cached),
        added(a.cost, b.cost),
        b.finish,
    )
