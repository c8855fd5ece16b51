"""The replay engine: answers from journals. `python -m orchestrator.engines.replay .sia [JOURNAL…]` (default: all).

A request is answered if the very same one was answered before: schema, system prompt, context or turns, prefix, seed.
Anything else is an `engine` error; a miss never falls back to a live engine. Token counts are those of the recorded
inference with the same prompt. Usage is what was recorded. Where the same request was answered more than once, the
answers come in their order, the last one again and again.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterable
from pathlib import Path

from orchestrator.answers import answered
from orchestrator.engines.serve import EngineError, Line, serve
from orchestrator.errors import SiaError, UsageError
from orchestrator.exchanges import ExchangeStore
from orchestrator.journal import Asked, Exchange, Journal
from orchestrator.protocol import EngineUsage, Request, clean

_LIMIT = 32768  # where no journal tells the token limit


class ReplayModel:
    """Implements `engines.serve.Model` over recorded exchanges. All answers are held in memory, contexts are not."""

    def __init__(self, exchanges: Iterable[Exchange]) -> None:
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
        if name not in self._counts:
            raise EngineError("engine", f"no recorded inference has this prompt ({name[:16]})")
        return self._counts[name]

    def infer(self, request: Request, line: Line) -> Generator[bytes, None, EngineUsage]:
        """The recorded answer."""
        name = key(request)
        with self._lock:
            answers = self._answers.get(name)
            if not answers:
                raise EngineError("engine", f"no recorded answer for this request ({name[:16]})")
            reply, usage = answers.popleft() if len(answers) > 1 else answers[0]
        yield clean(reply).encode("utf-8", "replace")
        return usage


def key(asked: Request | Asked, *, answer: bool = True) -> str:
    """The hash of a request in canonical form; without `answer` only of its prompt (no prefix, no seed)."""
    prompt = [asked.schema.strip(), asked.system, asked.context, [[turn.role, turn.text] for turn in asked.turns]]
    whole = [*prompt, asked.prefix, asked.seed] if answer else prompt
    return hashlib.sha256(json.dumps(whole, ensure_ascii=True).encode()).hexdigest()


def load(home: Path, names: list[str]) -> ReplayModel:
    """The model of some journals, or of all. Raises SiaError if there is no store or journal."""
    if not (home / "exchanges" / "exchanges.db").exists():
        raise UsageError("there is no exchange store", where=str(home), fix="name the state directory, usually .sia")
    store = ExchangeStore(home / "exchanges", home / "sia.db")
    try:
        wanted = names or [name for name, _ in Journal.names(store)]
        return ReplayModel(exchange for name in wanted for exchange in Journal.open(store, name))
    finally:
        store.close()


def main(arguments: list[str]) -> int:
    """Serve on fd 0. Exit codes: 2 for a wrong command line, else as the error says."""
    if not arguments:
        print("usage: python -m orchestrator.engines.replay STATE-DIRECTORY [JOURNAL…]", file=sys.stderr)
        return 2
    try:
        serve(load(Path(arguments[0]), arguments[1:]))
    except SiaError as error:
        print(f"replay engine: {error.render()}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
