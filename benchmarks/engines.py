"""Schema-guided answers of a real model: are they valid, and what does guiding cost? Needs `llama` and SmolLM2."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lxml import etree

from benchmarks.figure import Figure
from orchestrator.answers import close_checkers
from orchestrator.engines import models
from orchestrator.engines.serve import Line
from orchestrator.engines.xml_schema_validator import compile_schema, guide
from orchestrator.protocol import EngineUsage, Request

if TYPE_CHECKING:
    from orchestrator.engines.llama.model import LlamaModel
    from orchestrator.engines.llama.server import LlamaServer

SCHEMA = Path(__file__).parent.parent / "action_schema.xsd"
ANSWERS = 500
CUT, WHOLE = 8, 96  # tokens: every second answer is cut off
PREFIXES = ("", "", "<single>", "<", "<reasoning><![CDATA[")
PAIRS = 16
TOKENS = 48  # of one measured generation


def measure() -> Iterator[Figure]:
    """Compile times always; the model's figures, each as it is known, where the model is there."""
    yield from _compiling()
    model = models.directory() / models.KNOWN["smollm2"].file
    if importlib.util.find_spec("xllamacpp") is None or not model.exists():
        print("engines: no figures of a model: scripts/setup llama, then: .venv/bin/sia engines fetch smollm2")
        return
    from orchestrator.engines.llama.model import LlamaModel
    from orchestrator.engines.llama.server import LlamaOptions, LlamaServer

    server = LlamaServer(model, LlamaOptions(context=4096, parallel=2))
    try:
        yield _overhead(server)
        yield _reuse(server)
        yield _cancel(server)
        yield _sampling(LlamaModel(server, temperature=1.0))
    finally:
        close_checkers()


def _compiling() -> list[Figure]:
    schema, cold, warm = SCHEMA.read_bytes(), [], []
    for _ in range(5):
        begun = time.perf_counter()
        compile_schema(schema)
        cold.append(time.perf_counter() - begun)
    guide(schema).grammar()
    for _ in range(20):
        begun = time.perf_counter()
        guide(schema).grammar()
        warm.append(time.perf_counter() - begun)
    seconds, cached = statistics.median(cold), statistics.median(warm)
    return [
        Figure("schema to automaton, cold", seconds, 1.0, "1 s", f"{seconds * 1000:.0f} ms, in a process of its own"),
        Figure("schema to grammar, known", cached / 0.01, 1.0, "10 ms", f"{cached * 1e6:.0f} µs"),
    ]


def _body(prompt: list[int], seed: int, tokens: int, grammar: str | None = None) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": tokens, "temperature": 1.0, "seed": seed, "cache_prompt": True}
    return {**body, "grammar": grammar} if grammar else body


def _last(server: LlamaServer, body: dict[str, Any]) -> dict[str, Any]:
    return list(server.stream(body))[-1]


def _tokens(server: LlamaServer, text: str) -> list[int]:
    found: list[int] = server.ask("POST", "/tokenize", {"content": text})["tokens"]
    return found


def _overhead(server: LlamaServer) -> Figure:
    """Time of a token, guided against unguided, in turn and with the same seeds."""
    prompt = _tokens(server, "A long story about a small house in the woods. <reasoning>Once upon a time")
    grammar = guide(SCHEMA.read_bytes()).grammar("<reasoning>")
    times: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(PAIRS):
        for guided in (seed % 2 == 0, seed % 2 == 1):
            last = _last(server, _body(prompt, seed, TOKENS, grammar if guided else None) | {"ignore_eos": not guided})
            if last["tokens_predicted"] >= TOKENS // 2:
                times[guided].append(last["timings"]["predicted_per_token_ms"])
    with_it, without = statistics.median(times[True]), statistics.median(times[False])
    detail = f"{with_it:.2f} ms against {without:.2f} ms"
    return Figure("a guided token", with_it / without, 1.05, "an unguided one", detail)


def _reuse(server: LlamaServer) -> Figure:
    """Time to read the prompt of a second iteration, which appends to the first's, against the first's."""
    first, second = [], []
    for run in range(3):
        prompt = _tokens(server, f"Run {run}. " + "The quick brown fox jumps over the lazy dog. " * 100)
        first.append(_last(server, _body(prompt, 1, 1))["timings"]["prompt_ms"])
        more = prompt + _tokens(server, " And then it reads what came of its last action: nothing at all.")
        second.append(_last(server, _body(more, 1, 1))["timings"]["prompt_ms"])
    a, b = statistics.median(first), statistics.median(second)
    return Figure("prompt of a second iteration", b / a, 0.2, "of the first", f"{b:.0f} ms against {a:.0f} ms")


def _cancel(server: LlamaServer) -> Figure:
    """Time until a model whose two requests were given up while it read their prompts answers a third."""
    prompt = _tokens(server, "Read this. " + "One two three four five six seven. " * 200)
    begun = time.perf_counter()
    _last(server, _body(prompt, 1, 1))
    whole, waited = time.perf_counter() - begun, []
    for run in range(2):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda n, run=run: _given_up(server, [n + 1, run + 1, *reversed(prompt)]), range(2)))
        begun = time.perf_counter()
        _last(server, _body([3, run], 1, 1))
        waited.append(time.perf_counter() - begun)
    seconds = statistics.median(waited)
    return Figure("an answer after two cancelled prompts", seconds / whole, 1.0, "reading one", f"{seconds:.2f} s")


def _given_up(server: LlamaServer, prompt: list[int]) -> None:
    events = server.stream(_body(prompt, 1, 1))
    next(events)
    events.close()


def _sampling(model: LlamaModel) -> Figure:
    """Answers at temperature 1, every second one cut off and ended: how many are not valid?"""
    validator = etree.XMLSchema(etree.parse(str(SCHEMA)))
    schema, system = SCHEMA.read_text(), "You are an agent. Answer with one action.\n"

    def one(number: int) -> tuple[str, EngineUsage]:
        context = f"<context stdin='{number % 7}'><single id='{number}'>ls</single></context>"
        prefix = PREFIXES[number % len(PREFIXES)]
        request = Request(
            "infer_xml",
            system + schema,
            schema,
            context,
            prefix=prefix,
            seed=number,
            max_tokens=CUT if number % 2 else WHOLE,
        )
        pieces, answer = model.infer(request, Line(closed=lambda: False)), prefix.encode()
        while True:
            try:
                answer += next(pieces)
            except StopIteration as end:
                return answer.decode(), end.value

    begun = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        given = list(pool.map(one, range(ANSWERS)))
    seconds = time.perf_counter() - begun
    invalid = [text for text, _ in given if not _valid(validator, text)]
    for text in invalid[:5]:
        print(f"not valid: {text!r}", file=sys.stderr)
    cut = sum(usage.finish == "length" for _, usage in given)
    tokens = sum(usage.completion or 0 for _, usage in given)
    detail = f"{cut} were cut off and ended; {tokens} tokens in {seconds:.0f} s"
    return Figure(f"invalid of {ANSWERS} guided answers", len(invalid), 0, "none", detail)


def _valid(validator: etree.XMLSchema, text: str) -> bool:
    try:
        return bool(validator.validate(etree.fromstring(text.encode())))
    except etree.XMLSyntaxError:
        return False
