"""How much of a prompt an engine has read before: the common beginning of two consecutive prompts, per renderer."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.figure import Figure
from instance.clock import SequentialIds, stamp
from instance.entries import Entry, ReasoningEntry, RepeatEntry, SingleEntry
from instance.renderer import DocumentRenderer, Prompt, Renderer
from instance.scripts import Script, ScriptResult, ScriptRunner
from instance.signals import Interrupt
from instance.transcript import TranscriptRenderer

ROOT = Path(__file__).resolve().parent.parent
ITERATIONS = 200
DELETE_EVERY = 8  # iterations; then the third newest entry goes, as models do with outputs that they have read
_START = datetime(2025, 1, 1, tzinfo=UTC)


def run() -> Iterator[tuple[dict[str, str], list[Entry]]]:
    """Attributes and entries of each iteration of a typical run: scripts and thoughts, one repeat, some deletes."""
    ids, runner, entries = SequentialIds(), ScriptRunner(os.environ, Interrupt()), list[Entry]()
    repeat = RepeatEntry(Script("date; git status --short"), runner, ids.next(), _START)
    entries.append(repeat)
    for number in range(ITERATIONS):
        now = _START + timedelta(seconds=7 * number)
        repeat.finish(ScriptResult(f"{stamp(now)}\n M src/module_{number % 5}.py\n", "", 0))
        if number % 3 == 2:
            entries.append(
                ReasoningEntry(f"The fault is not in part {number}; next I look at its caller. " * 3, ids.next(), now)
            )
        else:
            output = "".join(
                f"{line:>5}  value_{line * number % 997} = compute({line})\n" for line in range(10 + number % 30)
            )
            script = Script(f"sed -n '{number},+{10 + number % 30}p' src/module_{number % 5}.py")
            entries.append(SingleEntry(script, runner, ids.next(), now, ScriptResult(output, "", 0)))
        if number % DELETE_EVERY == DELETE_EVERY - 1:
            del entries[-3]
        attributes = {
            "time": stamp(now), "cpu": str(number * 37 % 100), "memory_used": str(10**9 + number * 4096),
            "context": str(5 + number // 4), "stdin": "0",
        }  # fmt: skip
        yield attributes, entries


def flat(prompt: Prompt) -> tuple[str, str]:
    """The system text, and the rest as one text, the way a chat template puts turns one after the other."""
    if isinstance(prompt.context, str):
        return prompt.system, prompt.context
    return prompt.system, "".join(f"<|{turn.role}|>{turn.text}" for turn in prompt.context)


def common_length(left: str, right: str) -> int:
    """Characters of the common beginning."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def shares(renderer: Renderer) -> tuple[float, float]:
    """Mean share of a prompt that is the beginning of the one before: of all of it, and without the system text."""
    whole: list[float] = []
    context: list[float] = []
    before: str | None = None
    for attributes, entries in run():
        system, text = flat(renderer.render(attributes, entries))
        if before is not None:
            common = common_length(before, text)
            whole.append((len(system) + common) / (len(system) + len(text)))
            context.append(common / len(text))
        before = text
    return statistics.mean(whole), statistics.mean(context)


def measure() -> list[Figure]:
    """What is new to the engine in each iteration: the transcript's share against the document's."""
    prompt = (ROOT / "procedures" / "system_prompt.md").read_text()
    schema = (ROOT / "action_schema.xsd").read_text()
    kinds: Sequence[Renderer] = (DocumentRenderer(prompt, schema), TranscriptRenderer(prompt, schema))
    document, transcript = (shares(kind) for kind in kinds)
    detail = (
        f"common beginning of consecutive prompts, {ITERATIONS} iterations: document {document[0]:.1%} of the prompt "
        f"({document[1]:.1%} of the context), transcript {transcript[0]:.1%} ({transcript[1]:.1%})"
    )
    ratio = (1 - transcript[0]) / (1 - document[0])
    return [Figure("transcript: characters new to the engine", ratio, 0.25, "the document renderer", detail)]
