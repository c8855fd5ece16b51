"""The replay engine: `python -m orchestrator.engines.replay .sia [JOURNAL…] [--record -- COMMAND…]` (default: all).

A request is answered if the very same one was answered before: schema, system prompt, context or turns, prefix, seed.
Anything else is an `engine` error that names the first byte that differs from the nearest recorded request; a miss
never falls back to a live engine, unless `--record` names one: then it answers what is missing, and the journal of the
run that asks is the record. Token counts are those of the recorded
inference with the same prompt. Usage is what was recorded. Where the same request was answered more than once, the
answers come in their order, the last one again and again.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path

from orchestrator.answers import answered
from orchestrator.engines.host import EngineDown, EngineHost
from orchestrator.engines.serve import EngineError, Line, serve
from orchestrator.errors import SiaError, UsageError
from orchestrator.exchanges import ExchangeStore
from orchestrator.journal import Asked, Exchange, Journal
from orchestrator.protocol import EngineUsage, Request, clean, write_request
from orchestrator.replies import ReplyReader

_LIMIT = 32768  # where no journal tells the token limit


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
        self._limit = _LIMIT
        self._lock = threading.Lock()
        for exchange in exchanges:
            if exchange.kind == "limit" and exchange.error is None:
                self._limit = int(exchange.reply)
            if not answered(exchange):
                continue
            usage = exchange.usage or EngineUsage()
            self._answers.setdefault(key(exchange.asked), deque()).append((exchange.reply, usage))
            if usage.prompt is not None:
                self._counts[key(exchange.asked, answer=False)] = usage.prompt

    def __len__(self) -> int:
        return sum(map(len, self._answers.values()))

    def token_limit(self) -> int:
        """As recorded."""
        return self._limit

    def token_count(self, request: Request) -> int:
        """The prompt tokens that were recorded with the same prompt."""
        name = key(request, answer=False)
        if name not in self._counts and self._live is not None:
            pieces = _live_reply(self._live, request)
            return int(b"".join(pieces).decode("utf-8", "replace").strip() or 0)
        if name not in self._counts:
            raise EngineError("engine", f"no recorded inference has this prompt ({name[:16]})")
        return self._counts[name]

    def infer(self, request: Request, line: Line) -> Generator[bytes, None, EngineUsage]:
        """The recorded answer."""
        name = key(request)
        with self._lock:
            answers = self._answers.get(name)
            found = answers and (answers.popleft() if len(answers) > 1 else answers[0])
        if not found and self._live is not None:
            return (yield from _live_reply(self._live, request))
        if not found:
            where = difference(request, self._recorded() if self._recorded else ())
            raise EngineError("engine", f"no recorded answer for this request ({name[:16]}){where}")
        reply, usage = found
        yield clean(reply).encode("utf-8", "replace")
        return usage


def key(asked: Request | Asked, *, answer: bool = True) -> str:
    """The hash of a request in canonical form; without `answer` only of its prompt (no prefix, no seed)."""
    prompt = [asked.schema.strip(), asked.system, asked.context, [[turn.role, turn.text] for turn in asked.turns]]
    whole = [*prompt, asked.prefix, asked.seed] if answer else prompt
    return hashlib.sha256(json.dumps(whole, ensure_ascii=True).encode()).hexdigest()


def difference(asked: Request, recorded: Iterable[Exchange]) -> str:
    """Where a request parts from the recorded one that it shares most with: the part and the first differing byte."""
    wanted, nearest, told = _parts(asked), (-1, -1), ""
    for exchange in recorded:
        if not answered(exchange):
            continue
        for number, ((part, mine), (_, theirs)) in enumerate(zip(wanted, _parts(exchange.asked), strict=True)):
            if mine == theirs:
                continue
            pairs = enumerate(zip(mine, theirs, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(mine), len(theirs)))
            if (number, at) > nearest:
                nearest = number, at
                told = (
                    f": it parts from exchange {exchange.n} in its {part} at byte {at}, where {mine[at : at + 24]!r} "
                    f"is asked and {theirs[at : at + 24]!r} was recorded"
                )
            break
    return told


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


def _live_reply(live: EngineHost, request: Request) -> Generator[bytes, None, EngineUsage]:
    """What a live engine answers. Raises EngineError as it does."""
    reader = ReplyReader()
    try:
        with live.connect() as line:
            line.sendall(write_request(request))
            while not reader.done:
                data = line.recv(1 << 16)
                if not data:
                    raise EngineError("engine", "the live engine closed the line")
                if text := reader.feed(data):
                    yield text.encode()
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
            for name in names or [name for name, _ in Journal.names(store)]:
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
