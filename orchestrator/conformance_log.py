"""The form of an agent's own iteration log, as number 14 of its specification has it. The log is hostile input."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from orchestrator.log_comparison import logged_answers
from orchestrator.untrusted import one_line

HASHES = ("system_prompt_hash", "action_schema_hash")
_HEAD_SIZE = 4000  # bytes
_HEAD = re.compile(rb"\s*(?:<\?xml[^>]{0,200}\?>\s*)?<iteration\b([^>]{0,2000})>\s*<context\b")
_ATTRIBUTE = re.compile(rb"""\b(\w+)\s*=\s*["']([^"'<]{1,200})["']""")


def form_fault(given: Sequence[str], log: Iterable[tuple[str, bytes]]) -> str | None:
    """What is wrong with a log (name and content of each file), in words; None if it is as it should be.

    One file per answer: `<iteration>` with two hashes, in it `<context>` and `<response>`. What a hash stands for lies
    beside it, in a file whose name holds the hash. None as well where nothing is logged at all: no agent has to.
    """
    names, logged = [], []
    for name, content in log:
        names.append(name)
        if answers := logged_answers(content):
            logged.append((name, content[:_HEAD_SIZE], answers))
    for name, content, answers in logged:
        if len(answers) > 1:
            return f"{one_line(name, 80)} holds {len(answers)} answers"
        head = _HEAD.match(content)
        found = {key.decode(): value.decode("utf-8", "replace") for key, value in _attributes(head)}
        if head is None or not all(key in found for key in HASHES):
            return f"{one_line(name, 80)} is not <iteration {'= '.join(HASHES)}=><context>…</context><response>…"
        for key in HASHES:
            if not any(found[key] in other for other in names):
                return f"the text behind {key}={one_line(found[key], 80)!r} does not lie beside the log"
    if logged and len(logged) < len(given) - 1:  # the last one is given when it was asked to end
        return f"{len(logged)} of {len(given)} answers are logged"
    return None


def _attributes(head: re.Match[bytes] | None) -> list[tuple[bytes, bytes]]:
    return _ATTRIBUTE.findall(head[1]) if head else []
