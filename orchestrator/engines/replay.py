"""The replay engine: `python -m orchestrator.engines.replay .sia [JOURNAL…] [--record -- COMMAND…]` (default: all).

A request is answered if the very same one was answered before: schema, system prompt, context or turns, prefix, seed;
a token count if that very prompt was counted or answered. Anything else is an `engine` error that names the first byte
that differs from the nearest recorded inference; a miss never falls back to a live engine, unless `--record` names one:
then it answers what is missing, and the journal of the run that asks is the record. Usage is what was recorded. Where
the same request was answered more than once, the answers come in their order, the last one again and again.
"""

from __future__ import annotations

import itertools
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.answers import answered
from orchestrator.engines.beginnings import shared_beginning
from orchestrator.engines.host import EngineDown, EngineHost
from orchestrator.engines.serve import EngineError, Hangup, Line, serve
from orchestrator.errors import SiaError, UsageError
from orchestrator.exchanges import ExchangeStore
from orchestrator.journal import Asked, Exchange, Journal, prompt_hash
from orchestrator.protocol import EngineUsage, Request, clean, write_request
from orchestrator.replies import ReplyReader

_LIMIT = 32768  # where neither a journal nor a live engine tells the token limit
_EXPLAINING = 20.0  # seconds for the search of the nearest request: the broker gives an engine up after 120 s
_TICK = 0.1  # seconds between looks at whether anybody still waits for a live engine
_SILENCE = 120.0  # seconds without a byte after which a live engine counts as failed, as at the broker
_USAGE_WAIT = 5.0  # seconds for its usage after a reply
_PIECE = 1 << 16  # bytes sent or taken at once
_AGAIN = 12  # bytes: so many equal ones end a difference
_GAPS = sorted(itertools.product(range(40), repeat=2), key=sum)  # bytes of both sides that may differ before that


class ReplayModel:
    """Implements `engines.serve.Model` over recorded exchanges. All answers are held in memory, contexts are not."""

    def __init__(
        self,
        exchanges: Iterable[Exchange],
        recorded: Callable[[], Iterable[Exchange]] | None = None,
        live: EngineHost | None = None,
    ) -> None:
        """`recorded` gives the exchanges again, to explain a miss; `live` answers misses."""
        self._recorded, self._live = recorded, live
        self._answers: dict[str, deque[tuple[str, EngineUsage]]] = {}
        self._counts: dict[str, int] = {}
        self._prompts: dict[str, int] = {}  # tokens of inferences, for prompts whose count was not recorded
        self._limit: int | None = None
        self._lock = threading.Lock()
        for exchange in exchanges:
            if exchange.error is None:
                self._learn(exchange)

    def _learn(self, exchange: Exchange) -> None:
        asked = exchange.asked
        if exchange.kind == "limit":
            self._limit = int(exchange.reply)
        elif exchange.kind == "count" and asked.prompt:
            self._counts[asked.prompt] = int(exchange.reply)
        elif answered(exchange):
            usage = exchange.usage or EngineUsage()
            self._answers.setdefault(key(asked), deque()).append((exchange.reply, usage))
            if usage.prompt is not None:
                self._prompts[prompt_hash(replace(asked, prefix=""))] = usage.prompt

    def __len__(self) -> int:
        return sum(map(len, self._answers.values()))

    def token_limit(self) -> int:
        """As recorded; else what the live engine says."""
        if self._limit is None and self._live is not None:
            self._limit = _live_number(self._live, Request("token_limit"))
        return _LIMIT if self._limit is None else self._limit

    def token_count(self, request: Request) -> int:
        """As recorded for the same prompt: its count, or else the tokens of its inference."""
        name = prompt_hash(request)
        found = self._counts.get(name)
        if found is None:
            found = self._prompts.get(prompt_hash(replace(request, prefix="")))
        if found is None and self._live is not None:
            return _live_number(self._live, request)
        if found is None:
            raise EngineError("engine", f"no recorded count of this prompt ({name[:16]}){self._where(request)}")
        return found

    def infer(self, request: Request, line: Line) -> Generator[bytes, None, EngineUsage]:
        """The recorded answer."""
        name = key(request)
        with self._lock:
            answers = self._answers.get(name)
            found = answers and (answers.popleft() if len(answers) > 1 else answers[0])
        if not found and self._live is not None:
            return (yield from _live_reply(self._live, request, line.closed))
        if not found:
            raise EngineError("engine", f"no recorded answer for this request ({name[:16]}){self._where(request)}")
        reply, usage = found
        yield clean(reply).encode("utf-8", "replace")
        return usage

    def _where(self, request: Request) -> str:
        try:
            return difference(request, self._recorded() if self._recorded else ())
        except (SiaError, sqlite3.Error) as error:
            return f", and what was recorded can't be read any more: {error}"


def key(asked: Request | Asked) -> str:
    """The name of a request for an answer: its prompt's, and its seed."""
    return f"{prompt_hash(asked)} {asked.seed}"


def difference(asked: Request, recorded: Iterable[Exchange], seconds: float = _EXPLAINING) -> str:
    """Where a request parts from the recorded inference that it shares most with: the part and the first differing
    byte, and the second one if the first difference is small (a number in a head that follows from the rest).

    After `seconds` the nearest of those that were looked at so far is told, and how many they were.
    """
    wanted, best, compared = _parts(asked), (-1, -1), 0
    told: Callable[[], str] = str
    if asked.kind == "token_count":
        wanted.pop()  # it has no seed
    deadline = time.monotonic() + seconds
    for exchange in recorded:
        if time.monotonic() > deadline:
            return f"{told()} (the first {compared} recorded inferences were compared, more would take too long)"
        if not answered(exchange):
            continue
        compared += 1
        pairs = zip(wanted, _parts(exchange.asked), strict=False)
        differing = ((number, part, mine, their) for number, ((part, mine), (_, their)) in enumerate(pairs))
        found = next((one for one in differing if one[2] != one[3]), None)
        if found is None:
            return f": exchange {exchange.n} has this prompt, but not how many tokens it is"
        number, part, mine, their = found
        places, shared = _parting(mine, their)
        if (number, shared) > best:
            best = number, shared
            told = partial(_told, f"exchange {exchange.n} in its {part}", mine, their, places)
    return told()


def _told(where: str, mine: bytes, their: bytes, places: list[tuple[int, int]]) -> str:
    return f": it parts from {where} at " + ", and again at ".join(_place(mine, their, *place) for place in places)


def _parting(mine: bytes, their: bytes) -> tuple[list[tuple[int, int]], int]:
    """Where two different texts part, and part again after a small difference (bytes of each, from 0); and how many
    bytes they share before, between and behind."""
    shared = at = shared_beginning(mine, their)
    places, one, other = [(at, at)], at, at
    for i, j in _GAPS:
        equal = mine[at + i : at + i + _AGAIN]
        if len(equal) == _AGAIN and equal == their[at + j : at + j + _AGAIN]:
            more = shared_beginning(mine[at + i :], their[at + j :])
            shared, one, other = shared + more, at + i + more, at + j + more
            if (one, other) != (len(mine), len(their)):
                places.append((one, other))
            break
    return places, shared + shared_beginning(mine[one:][::-1], their[other:][::-1])


def _place(mine: bytes, their: bytes, one: int, other: int) -> str:
    return f"byte {one}, where {mine[one : one + 24]!r} is asked and {their[other : other + 24]!r} was recorded"


def _parts(asked: Request | Asked) -> list[tuple[str, bytes]]:
    turns = "".join(f"[{turn.role}] {turn.text}\n" for turn in asked.turns)
    texts = [
        ("schema", asked.schema.strip()),
        ("system prompt", asked.system),
        ("context", asked.context if asked.context is not None else turns),
        ("prefix", asked.prefix),
        ("seed", str(asked.seed)),
    ]
    return [(name, text.encode("utf-8", "surrogatepass")) for name, text in texts]


def _live_number(live: EngineHost, request: Request) -> int:
    text = b"".join(_live_reply(live, request, lambda: False)).decode("utf-8", "replace").strip()
    if not (text.isascii() and text.isdigit()):
        raise EngineError("engine", f"the live engine answers {text[:40]!r}, which is no number of tokens")
    return int(text)


def _live_reply(live: EngineHost, request: Request, closed: Callable[[], bool]) -> Generator[bytes, None, EngineUsage]:
    """What a live engine answers. Raises EngineError as it does, and Hangup, which cancels it, once it is `closed`."""
    unsent = memoryview(write_request(replace(request, seed=request.seed or 0)))  # with a seed usage is sent
    reader, heard = ReplyReader(), time.monotonic()
    try:
        with live.connect() as line:
            line.settimeout(_TICK)
            while not reader.done:
                if closed():
                    raise Hangup
                quiet = time.monotonic() - heard
                if reader.ended and quiet > _USAGE_WAIT:
                    break
                if quiet > _SILENCE:
                    raise EngineError("engine", f"no answer from the live engine for {_SILENCE:g} s")
                try:
                    if unsent:
                        unsent = unsent[line.send(unsent[:_PIECE]) :]
                        continue
                    data = line.recv(_PIECE)
                except TimeoutError:
                    continue
                if not data and not reader.ended:
                    raise EngineError("engine", "the live engine closed the line")
                heard = time.monotonic()
                if text := reader.feed(data):
                    yield text.encode()
                if not data:
                    break
    except (EngineDown, OSError) as error:
        raise EngineError("engine", f"the live engine does not answer: {error}") from None
    if reader.error:
        raise EngineError(*reader.error)
    return reader.usage or EngineUsage()


def load(home: Path, names: list[str], live: EngineHost | None = None) -> ReplayModel:
    """The model of some journals, or of all. Raises SiaError if there is no store or journal."""
    if not (home / "exchanges" / "exchanges.db").exists():
        raise UsageError("there is no exchange store", where=str(home), fix="name the state directory, usually .sia")

    def exchanges() -> Iterator[Exchange]:
        store = ExchangeStore(home / "exchanges", home / "sia.db")
        try:
            kept = (name for name, _ in Journal.names(store) if store.collected(name) is None)
            for name in names or kept:
                yield from Journal.open(store, name)
        finally:
            store.close()

    return ReplayModel(exchanges(), exchanges, live)


def main(arguments: list[str]) -> int:
    """Serve on fd 0. Exit codes: 2 for a wrong command line, else as the error says."""
    if not arguments:
        print(
            "usage: python -m orchestrator.engines.replay STATE-DIRECTORY [JOURNAL…] [--record -- COMMAND…]",
            file=sys.stderr,
        )
        return 2
    at = arguments.index("--record") if "--record" in arguments else len(arguments)
    names, command = arguments[1:at], [word for word in arguments[at + 1 :] if word != "--"]
    try:
        if at == len(arguments):
            serve(load(Path(arguments[0]), names))
            return 0
        if not command:
            raise UsageError("--record names no command", where="replay engine", fix="… --record -- COMMAND…")
        with EngineHost("live", command, Path.cwd(), Path("/dev/stderr")) as live:
            serve(load(Path(arguments[0]), names, live))
    except SiaError as error:
        print(f"replay engine: {error.render()}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
