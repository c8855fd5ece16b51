"""What answers on a line: a chat server, guided by a grammar where it takes one, else checked and asked again."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import Any

from orchestrator.engines.guided import Guides
from orchestrator.engines.openai.calls import Wait
from orchestrator.engines.openai.failures import Unkept, Unsuitable
from orchestrator.engines.openai.grammars import MINIMAL, MINIMAL_WISH, NONE_AT_ALL, Grammars, follows_minimal
from orchestrator.engines.openai.repair import meant, unwrapped
from orchestrator.engines.openai.server import ChatServer, Message, Reply
from orchestrator.engines.openai.sizes import Sizes, summed
from orchestrator.engines.serve import EngineError, Line
from orchestrator.engines.xml_schema_validator import Guide
from orchestrator.protocol import EngineUsage, Request, clean

_ANSWER = 1024  # tokens, where a request names no limit
_PROBE = 16  # tokens of an answer under the minimal grammar
_AGAIN = (
    "That answer is not valid: {fault}. Answer again with one valid action and nothing else around it: no code fence, "
    "no explanation."
)


class ChatModel:
    """Implements `engines.serve.Model`. Thread-safe. `attempts`: answers asked for until one is valid, at most."""

    def __init__(self, server: ChatServer, *, attempts: int = 3, temperature: float | None = None) -> None:
        self._server, self._attempts, self._temperature = server, attempts, temperature
        self._guides = Guides("openai engine")
        self._grammars = Grammars()
        self._sizes = Sizes(server)

    def token_limit(self) -> int:
        """What one request may have, prompt and answer."""
        return self._server.limit

    def token_count(self, request: Request) -> int:
        """The tokens of a prompt: the server's number if it can count, else an estimate by what prompts took so far."""
        return self._sizes.count(_messages(request))

    def infer(self, request: Request, line: Line) -> Generator[bytes, None, EngineUsage]:
        """The answer in pieces; in one piece where no grammar guides it."""
        wait = Wait(self._server.patience, line.closed)
        pieces = self._answer(request, wait)
        while True:
            try:
                piece = next(pieces)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            yield piece
            wait.passed()

    def _answer(self, request: Request, wait: Wait) -> Generator[bytes, None, EngineUsage]:
        prefix = request.prefix.lstrip()
        guide, why = self._guides.of(request.schema, prefix)
        if not request.schema:
            return (yield from self._unguided(request, wait))
        if why is None:
            why = self._grammars.refusal(request.schema) if self._server.dialect.guides else NONE_AT_ALL
        if guide is None or why is not None:
            usage = yield from self._until_valid(request, wait, guide, prefix)
            return replace(usage, unguided=why)
        try:
            return (yield from self._guided(request, wait, guide, prefix))
        except Unsuitable as error:
            used = error.usage
            why = str(error) if isinstance(error, Unkept) else f"the server refuses the grammar: {error}"
        used, works = self._look_at_grammars(used, wait)
        why = NONE_AT_ALL if works is False else why
        usage = yield from self._until_valid(request, wait, guide, prefix, used)
        if works is not None:  # not before: a server that refuses everything says nothing about grammars
            self._grammars.works = works
        self._refused(request.schema, why)
        return replace(usage, unguided=why)

    def _refused(self, schema: str, why: str) -> None:
        self._grammars.refused(schema, why)
        whose = "" if why == NONE_AT_ALL else "of this schema "
        self._guides.note(f"no grammars {whose}from now on, answers are checked and asked for again: {why}")

    def _look_at_grammars(self, used: EngineUsage, wait: Wait) -> tuple[EngineUsage, bool | None]:
        """After a refusal: does the server keep to any grammar? Asked until it is known. Returns also what it took."""
        if self._grammars.works is not None:
            return used, self._grammars.works
        messages = [{"role": "user", "content": MINIMAL_WISH}]
        extra = self._server.dialect.extra(MINIMAL, False)
        try:
            whole = _whole(self._server.reply(messages, wait, _PROBE, extra_body=extra))
        except Unsuitable:
            return used, False
        except EngineError as error:
            return summed(used, self._sizes.of_failure(error, messages)), None
        return summed(used, whole.usage), follows_minimal(whole.text)

    def _guided(self, request: Request, wait: Wait, guide: Guide, prefix: str) -> Generator[bytes, None, EngineUsage]:
        """An answer under a grammar. Raises Unsuitable if the server does not keep to it and nothing was passed on."""
        state, passed, whole = guide.automaton.walk(prefix), "", Reply()
        replies = self._replies(request, wait, grammar=guide.grammar(prefix))
        for piece, whole in replies:
            state = guide.automaton.walk(piece, state or 0)
            if state is None:
                replies.close()
                error = Unkept(self._sizes.filled(whole.usage, _messages(request), whole.text))
                if not passed:
                    raise error
                self._refused(request.schema, str(error))
                raise EngineError(error.code, str(error), error.usage)
            passed += piece
            if piece:
                yield piece.encode()
        ending = guide.ending(prefix, passed.encode())
        if whole.finish == "length" and ending and ending[1]:
            yield ending[1].encode()
            passed += ending[1]
        if fault := self._guides.fault(request.schema, prefix + passed):
            self._guides.note(f"a guided answer is not valid: {fault}")
        return _usage(whole)

    def _until_valid(
        self, request: Request, wait: Wait, guide: Guide | None, prefix: str, used: EngineUsage | None = None
    ) -> Generator[bytes, None, EngineUsage]:
        """Ask, check, ask again with what is wrong, as long as there is time for another answer like the longest.

        The last answer is given as it is: the agent sees what came. Nothing can be passed on before: an answer that is
        to be asked for again is none. `used` is what the request took before.
        """
        more: list[Message] = []
        answer, finish, longest = "", "stop", 0.0

        def fault(text: str) -> str | None:
            return self._guides.fault(request.schema, text)

        for attempt in range(self._attempts):
            begun = time.monotonic()
            try:
                whole = _whole(self._replies(request, wait, more=more, seed_step=attempt))
            except EngineError as error:
                error.usage = summed(used, error.usage)
                if attempt and wait.left <= 0:
                    used = error.usage
                    break
                raise
            longest = max(longest, time.monotonic() - begun)
            used = summed(used, _usage(whole))
            finish = used.finish
            answer = unwrapped(whole.text, request.prefix, fault)
            if whole.finish == "length" and guide and (ending := guide.ending(prefix, answer.encode())):
                answer += ending[1]
            if fault((request.prefix + answer).strip()) is None or wait.left < longest:
                break
            wrong = fault(meant(whole.text, request.prefix)) or "it is not the action alone"
            more += [{"role": "assistant", "content": whole.text or "(nothing)"}]
            more += [{"role": "user", "content": _AGAIN.format(fault=wrong)}]
        yield clean(answer).encode("utf-8", "replace")
        return replace(used or EngineUsage(), finish=finish)

    def _unguided(self, request: Request, wait: Wait) -> Generator[bytes, None, EngineUsage]:
        whole = Reply()
        for piece, latest in self._replies(request, wait):
            whole = latest
            yield clean(piece).encode("utf-8", "replace")
        return _usage(whole)

    def _replies(
        self,
        request: Request,
        wait: Wait,
        *,
        grammar: str | None = None,
        more: list[Message] | None = None,
        seed_step: int = 0,
    ) -> Generator[tuple[str, Reply], None, None]:
        prefills = self._server.dialect.prefills and bool(request.prefix) and not more
        messages = [*_messages(request, prefills=prefills), *(more or [])]
        most = self._sizes.room(messages, request.max_tokens or _ANSWER, wait)
        options: dict[str, Any] = {"extra_body": self._server.dialect.extra(grammar, prefills)}
        if request.seed is not None:
            options["seed"] = (request.seed + seed_step) & 0x7FFFFFFF
        if self._temperature is not None:
            options["temperature"] = self._temperature
        try:
            whole = yield from self._fitting(messages, wait, most, options)
        except EngineError as error:
            error.usage = self._sizes.of_failure(error, messages)
            raise
        self._sizes.learn(messages, whole.usage)

    def _fitting(
        self, messages: list[Message], wait: Wait, most: int, options: dict[str, Any]
    ) -> Generator[tuple[str, Reply], None, Reply]:
        """A reply; asked for once more with less room for it if prompt and answer are too long together."""
        try:
            return (yield from self._server.reply(messages, wait, most, **options))
        except EngineError as error:
            if error.code != "too_long" or most < 2:
                raise
        return (yield from self._server.reply(messages, wait, max(1, most // 4), **options))


def _whole(replies: Iterable[tuple[str, Reply]]) -> Reply:
    whole = Reply()
    for _, latest in replies:
        whole = latest
    return whole


def _usage(whole: Reply) -> EngineUsage:
    return replace(whole.usage, finish="length" if whole.finish == "length" else "stop")


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
