"""The broker: the outer end of an instance's engine line. Records, counts, charges and cuts off."""

from __future__ import annotations

import itertools
import math
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator import answers
from orchestrator.engine_line import Answer, EngineLine
from orchestrator.engines.host import EngineDown, EngineHost
from orchestrator.errors import SiaError
from orchestrator.instance_end import MAX_FRAME, Frame, HungUp, InstanceEnd
from orchestrator.journal import Asked, Exchange, Journal, prompt_hash
from orchestrator.live import LiveAnswer
from orchestrator.protocol import (
    EOT_BYTE,
    MAX_COUNTS,
    MAX_REQUEST,
    MAX_TOKENS,
    BadRequest,
    EngineUsage,
    Request,
    parse_request,
    write_error,
    write_request,
)

MAX_BAD = 100  # refused requests between two answered inferences, then the line is closed
MAX_BAD_BYTES = MAX_FRAME  # the same, added up: reading them takes our time
MAX_FAULTS = 3  # engine failures in a row at one kind of request, then the line is closed
MAX_ALL_FAULTS = 12  # the same, over the whole life of a line: no instance keeps an engine busy with dying
_MEMO = 64  # token counts that are remembered
_SUSPECT = 5.0  # seconds without a byte from the engine after which a cancelled request makes it suspect
_PROBE = 3.0  # seconds for the look at whether the engine answers anyone
_FRESH = 60.0  # the same, for a program that has just been started and may load a model first
_STUCK = 2.0  # seconds in a call that never waits, until its thread is given up
_UNGUIDED = "unguided: "  # begins the note that says why the schema did not guide answers; there is one at most
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Budget:
    """Upper bounds of one line; None = none. `cost` in US dollars: an unknown cost counts as over the bound.

    A bound is looked at before each inference, so tokens and cost end at most one inference above it.
    """

    iterations: int | None = None
    tokens: int | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Usage:
    """What a line has used. `iterations` = answered inferences. `cost` is None (unknown) once one price was unknown."""

    iterations: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = 0.0
    engine_seconds: float = 0.0
    counts: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together: what a token budget bounds."""
        return self.prompt_tokens + self.completion_tokens


class Line:
    """One engine line. `instance_end` goes to the instance as SIA_ENGINE_FD; close it here after the launch.

    `ended` says why no more answers come: None (open), `closed` (the instance closed it), `budget`, `engine` (three
    requests in a row failed there), `abuse` (too many bad requests), `journal` (evidence can't be written), `stopped`
    (`close` was called). After `budget` the line stays open, so that the agent can end in order.

    `engine_faults`: failures of the engine that reached the instance, in words (the last 20). `outage` is evidence that
    the engine failed and not this instance: it answers nobody, or lines of other groups failed at the same time.
    `group`: whose line it is (an arm of a campaign, or main): two of one candidate could agree on when to fail.
    `first_request` is set by the first request. `last_activity`: monotonic time of the last byte to or from the
    instance. `notes`: what the trial's record should say (`unguided: …`). `live`: what is asked and answered now.
    """

    def __init__(
        self,
        engine: EngineHost,
        journal: Journal,
        budget: Budget,
        schema: bytes,
        seed: Callable[[int], int],
        on_exchange: Callable[[Exchange], None] | None = None,
        *,
        silence: float = 120.0,
        group: str = "main",
    ) -> None:
        self.instance_end, ours = socket.socketpair()
        self.ended: str | None = None
        self.usage = Usage()
        self.engine_faults: tuple[str, ...] = ()
        self.first_request = threading.Event()
        self.notes: tuple[str, ...] = ()
        self._engine, self._journal, self._budget = engine, journal, budget
        self._schema, self._seed, self._on_exchange = schema, seed, on_exchange
        self._instance = InstanceEnd(ours)
        self._asks = EngineLine(engine, silence)
        self._group, self._number = group, next(_numbers)
        self._thread = threading.Thread(target=self._run, name=f"line-{self._number}", daemon=True)
        self._started = self._stopping = False
        self._guide = ""
        self._ordinal = self._bad = self._bad_bytes = self._counts = self._limits = 0
        self._failed: Counter[str] = Counter()  # in a row, by what was asked: an engine that counts may fail to infer
        self._limit: str | None = None
        self._memo: OrderedDict[str, str] = OrderedDict()
        self._fault_times: list[float] = []
        self._dead: str | None = None
        self.live = LiveAnswer()

    @property
    def last_activity(self) -> float:
        """Monotonic time of the last byte from the instance or to it."""
        return self._instance.last_activity

    @property
    def engine_silent(self) -> float:
        """Seconds that the request in work has waited without a byte from the engine; 0.0 if none is in work."""
        heard = self._asks.heard
        return 0.0 if heard is None else time.monotonic() - heard

    @property
    def outage(self) -> str | None:
        """Evidence that the engine failed and not this instance, in words; None if there is none."""
        if self._dead:
            return self._dead
        others = max((self._engine.others_failed(self._group, when) for when in self._fault_times), default=0)
        return f"{others} lines of other arms failed at the same time" if others else None

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._started = True
        self._thread.start()

    def close(self) -> None:
        """End the line and its generation. The thread is gone when this returns, or, where an instance has found a way
        to hold it up inside the kernel, left to itself. May be called twice."""
        self._stopping = True
        self._instance.shutdown()
        if self._started and threading.current_thread() is not self._thread:
            while self._thread.is_alive() and not self._instance.abandon(_STUCK):
                self._thread.join(_STUCK / 4)
        else:
            self._instance.close()
        self.instance_end.close()
        self._end("stopped")

    def _run(self) -> None:
        try:
            if fault := answers.schema_fault(self._schema):
                self._note(f"{_UNGUIDED}{fault}")
            else:
                self._guide = self._schema.decode("utf-8", "replace")
            while self.ended in (None, "budget") and (frame := self._instance.read()) is not None:
                self.first_request.set()
                self._serve(frame)
                self._instance.flush()
        except HungUp:
            pass
        except SiaError as error:
            self._note(error.what)
            self._end("journal")
            self._last_word(write_error("engine", "the exchange can't be recorded"))
        finally:
            self._end("stopped" if self._stopping else "closed")
            self._asks.drop()
            self._instance.close()

    def _last_word(self, reply: bytes) -> None:
        try:
            self._instance.queue(reply)
            self._instance.push()
        except HungUp:
            pass

    def _end(self, why: str) -> None:
        if self.ended is None or (self.ended == "budget" and why in ("engine", "journal")):
            self.ended = why

    def _note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < 20:
            self.notes = (*self.notes, text)

    def _serve(self, frame: Frame) -> None:
        at, begun = time.time(), time.monotonic()
        asked = Asked(size=frame.size, sha256=frame.sha256)
        try:
            if not frame.whole:
                raise BadRequest(f"request of {frame.size} bytes, at most {MAX_REQUEST} are taken")
            if not frame.ended:
                raise BadRequest("the line was closed inside a request")
            request = parse_request(frame.data)
            if request.kind == "token_count" and self._counts >= MAX_COUNTS:
                raise BadRequest(f"more than {MAX_COUNTS} token counts for one inference")
            if request.kind == "token_limit" and self._limits >= MAX_COUNTS:
                raise BadRequest(f"the token limit was asked for {MAX_COUNTS} times for one inference")
        except BadRequest as error:
            self._refuse(replace(asked, head=_head(frame.data)), at, begun, str(error))
            return
        if request.kind == "infer_xml":
            self._infer(request, asked, at, begun)
        else:
            self._tell(request, asked, at, begun)

    def _refuse(self, asked: Asked, at: float, begun: float, reason: str, code: str = "bad_request") -> None:
        self._record("refused", asked, Answer("", (code, reason), None), at, begun)
        self._instance.queue(write_error(code, reason))
        self._count_bad(asked.size)

    def _count_bad(self, size: int) -> None:
        self._bad += 1
        self._bad_bytes += size
        if self._bad >= MAX_BAD or self._bad_bytes >= MAX_BAD_BYTES:
            self.ended = "abuse"

    def _tell(self, request: Request, asked: Asked, at: float, begun: float) -> None:
        """A token limit or a token count, remembered if it was asked before."""
        counting = request.kind == "token_count"
        known = self._memo.get(asked.sha256) if counting else self._limit
        guided = replace(request, schema=self._guide)
        if counting:
            asked = replace(asked, prompt=prompt_hash(guided))
            self._counts += 1
            self.usage = replace(self.usage, counts=self.usage.counts + 1)
        else:
            self._limits += 1
        if known is not None:
            answer = Answer(known, None, None)
        else:
            answer = self._ask(write_request(replace(guided, seed=0, max_tokens=None)), stream=False)
            if answer.error is None and not answer.hung_up and not answer.text.strip().isdigit():
                reason = f"{answer.text[:40]!r} is not a number of tokens"
                answer = Answer("", ("engine", reason), answer.usage, fault=reason)
        if answer.error is None and not answer.hung_up:
            if counting:
                self._memo[asked.sha256] = answer.text
                while len(self._memo) > _MEMO:
                    self._memo.popitem(last=False)
            else:
                self._limit = answer.text
        self._record("count" if counting else "limit", asked, answer, at, begun)
        self._instance.queue(answer.text.encode())
        self._finish(answer, request.kind, asked.size)

    def _infer(self, request: Request, asked: Asked, at: float, begun: float) -> None:
        asked = replace(asked, schema=self._guide)
        if spent := self._spent():
            self._end("budget")
            self._refuse(asked, at, begun, spent, "budget")
            return
        self._ordinal += 1
        self._counts = self._limits = 0
        seed, most = self._seed(self._ordinal), MAX_TOKENS
        if self._budget.tokens is not None:
            most = max(1, min(most, self._budget.tokens - self.usage.tokens))
        self.live.asking(self._journal.entries + 1, request)
        answer = self._ask(write_request(replace(request, schema=self._guide, seed=seed, max_tokens=most)), stream=True)
        self.live.working()
        asked = replace(asked, seed=seed, max_tokens=most)
        if answer.error is None or answer.text:  # else it was never worked on: the hash says enough
            asked = replace(
                asked, system=request.system, prefix=request.prefix, context=request.context, turns=request.turns
            )
        self._charge(request, answer)
        if answer.usage and answer.usage.unguided and not any(note.startswith(_UNGUIDED) for note in self.notes):
            self._note(_UNGUIDED + answer.usage.unguided)
        self._record("infer", asked, answer, at, begun)
        self._finish(answer, request.kind, asked.size)

    def _ask(self, wire: bytes, *, stream: bool) -> Answer:
        begun = time.monotonic()
        try:
            return self._asks.ask(wire, self._instance, self.live.answering if stream else None)
        finally:
            spent = self.usage.engine_seconds + time.monotonic() - begun
            self.usage = replace(self.usage, engine_seconds=spent)

    def _finish(self, answer: Answer, kind: str, size: int) -> None:
        """The end of a reply, after it was recorded. `size`: bytes of the request."""
        if answer.hung_up:
            if answer.silent > _SUSPECT:
                self._probe()  # ended while it waited: was it the engine that answers nothing?
            raise HungUp
        if answer.error is None:
            self._failed[kind] = 0
            if kind == "infer_xml":  # nothing else costs it anything
                self._bad = self._bad_bytes = 0
            self._instance.queue(EOT_BYTE)
            return
        self._instance.queue(write_error(*answer.error))
        if answer.fault is None:
            self._count_bad(size)  # a request that the engine refused
            return
        self._failed[kind] += 1
        self.engine_faults = (*self.engine_faults, answer.fault)[-20:]
        self._fault_times = [*self._fault_times, self._engine.report_fault(self._group, self._number)][-20:]
        self._instance.push()
        if not self._stopping:
            self._probe()
        if self._failed[kind] >= MAX_FAULTS or len(self.engine_faults) >= MAX_ALL_FAULTS:
            self._end("engine")

    def _probe(self) -> None:
        """After a failure: does the engine answer anyone? It is the engine's failure if not.

        A program that died gets its restart first: where a fresh one answers, it was this request that ended it, and
        an instance must not be able to undo a trial that it loses by asking for what crashes the engine.
        """
        deadline, fresh = time.monotonic() + _FRESH, False
        while True:
            fresh = fresh or not self._engine.alive()
            try:
                self._engine.probe(_FRESH if fresh else _PROBE)
                return
            except EngineDown as error:
                reason: Exception = error
                started = fresh and not error.retry_after
                if not started and time.monotonic() < deadline:
                    if self._rested(error.retry_after):
                        continue
                    return  # nobody knows whether it would have answered
            except OSError as error:
                reason = error
            self._dead = f"the engine answers nobody: {reason}"
            return

    def _rested(self, seconds: float) -> bool:
        """Wait; False if the line is closed meanwhile."""
        end = time.monotonic() + seconds + 0.05
        while (left := end - time.monotonic()) > 0:
            if self._stopping:
                return False
            time.sleep(min(left, 0.1))
        return True

    def _spent(self) -> str | None:
        """Why the budget allows no more inference, or None."""
        budget, usage = self._budget, self.usage
        if budget.iterations is not None and usage.iterations >= budget.iterations:
            return f"all {budget.iterations} iterations are used"
        if budget.tokens is not None and usage.tokens >= budget.tokens:
            return f"all {budget.tokens} tokens are used"
        if budget.cost is not None and usage.cost is None:
            return f"the cost so far is unknown, the limit is {budget.cost:g} dollars"
        if budget.cost is not None and usage.cost is not None and usage.cost >= budget.cost:
            return f"all {budget.cost:g} dollars are used"
        return None

    def _charge(self, request: Request, answer: Answer) -> None:
        """Count an inference. What the engine did not tell is estimated for tokens, and unknown for money."""
        if answer.error is not None and not answer.text and (answer.usage is None or answer.usage.prompt is None):
            return  # nothing was generated
        used, usage = answer.usage or EngineUsage(), self.usage
        prompt, completion = used.prompt, used.completion
        if prompt is None or completion is None:
            self._note("token numbers of some answers are estimates: the engine gave none")
            turns = sum(len(turn.text) for turn in request.turns)
            size = len(request.system) + len(self._guide) + len(request.context or "") + turns
            prompt = math.ceil(size / 4) if prompt is None else prompt
            completion = math.ceil(len(answer.text) / 4) if completion is None else completion
        self.usage = replace(
            usage,
            iterations=usage.iterations + (answer.error is None and not answer.hung_up),
            prompt_tokens=usage.prompt_tokens + prompt,
            completion_tokens=usage.completion_tokens + completion,
            cached_tokens=usage.cached_tokens + (used.cached or 0),
            cost=None if usage.cost is None or used.cost is None else usage.cost + used.cost,
        )

    def _record(
        self,
        kind: Literal["infer", "count", "limit", "refused"],
        asked: Asked,
        answer: Answer,
        at: float,
        begun: float,
    ) -> None:
        error = " ".join(answer.error) if answer.error else None
        if answer.hung_up:
            error = "closed the instance closed the line before the end"
        exchange = Exchange(
            n=self._journal.entries + 1,
            time=at,
            kind=kind,
            asked=asked,
            reply=answer.text,
            seconds=time.monotonic() - begun,
            finish="error" if error else (answer.usage.finish if answer.usage else "stop"),
            usage=answer.usage,
            error=error,
        )
        self._journal.append(exchange)
        if self._on_exchange is not None:
            try:
                self._on_exchange(exchange)
            except Exception as fault:  # a watcher's fault must not cost the instance its line
                self._note(f"a watcher of this line failed: {fault}")


def _head(data: bytes) -> str:
    return data[:4000].decode("utf-8", "replace")
