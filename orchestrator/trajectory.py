"""Journals in other shapes: `<iteration>` XML, an ATIF trajectory, and the difference between two of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lxml import etree

from orchestrator.answers import answered
from orchestrator.exchanges import cut
from orchestrator.journal import Exchange, Journal, text_hash
from orchestrator.protocol import escape
from orchestrator.untrusted import printable

ATIF = "ATIF-v1.4"
_ROOT_ATTRIBUTES = re.compile(r"\A(\s*<context)\b[^>]*?(/?>)")
_END = "</context>"
COMPARED = 3000  # answers of each side; beyond it a comparison would take minutes


@dataclass(frozen=True)
class Run:
    """A stretch of two compared journals: `same`, `left` (only there) or `right`; `numbers` are the exchanges'."""

    kind: str
    numbers: tuple[int, ...]
    answers: tuple[str, ...]


def prompt(exchange: Exchange) -> str:
    """The context that was asked, or the turns as `<turn>` elements."""
    if exchange.asked.context is not None:
        return exchange.asked.context
    return "\n".join(f'<turn role="{turn.role}">{escape(turn.text)}</turn>' for turn in exchange.asked.turns)


def iteration_xml(exchange: Exchange) -> str:
    """One exchange as the agents' own logs show it; characters that XML can't carry or terminals obey are left out."""
    asked = exchange.asked
    hashes = f'system_prompt_hash="{text_hash(asked.system)}" action_schema_hash="{text_hash(asked.schema)}"'
    reply = escape(printable(asked.prefix + exchange.reply))
    error = f"\n<error>{escape(printable(exchange.error))}</error>" if exchange.error else ""
    body = printable(prompt(exchange) or asked.head)
    return f"<iteration {hashes}>\n<context>\n{body}\n</context>\n<response>{reply}</response>{error}\n</iteration>"


def compare(left: Sequence[Exchange], right: Sequence[Exchange]) -> list[Run]:
    """Where the answers of two journals agree and where not, in order."""
    sides = [[one for one in side if answered(one)][:COMPARED] for side in (left, right)]
    texts = [[(one.asked.prefix + one.reply).strip() for one in side] for side in sides]
    matcher = difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False)
    runs: list[Run] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            runs.append(Run("same", tuple(one.n for one in sides[0][a:b]), tuple(texts[0][a:b])))
            continue
        if b > a:
            runs.append(Run("left", tuple(one.n for one in sides[0][a:b]), tuple(texts[0][a:b])))
        if d > c:
            runs.append(Run("right", tuple(one.n for one in sides[1][c:d]), tuple(texts[1][c:d])))
    return runs


def context_difference(left: Exchange, right: Exchange, lines: int = 40) -> list[str]:
    """The first lines of a unified diff of what two agents were shown; the root's metrics are left out."""
    texts = [_ROOT_ATTRIBUTES.sub(r"\1\2", prompt(one)).splitlines() for one in (left, right)]
    found = list(difflib.unified_diff(texts[0][:5000], texts[1][:5000], "left", "right", lineterm="", n=1))
    return found[:lines] + ([f"… {len(found) - lines} more lines"] if len(found) > lines else [])


def trajectory(journal: Journal) -> dict[str, Any]:
    """The journal as an ATIF document: one agent step per answer, its observation from the context that came next."""
    exchanges = [one for one in journal if answered(one)]
    steps: list[dict[str, Any]] = []
    if exchanges:
        steps.append({"source": "system", "message": exchanges[0].asked.system})
        steps.append({"source": "user", "message": prompt(exchanges[0])})
    for index, exchange in enumerate(exchanges):
        following = exchanges[index + 1] if index + 1 < len(exchanges) else None
        steps.append(_agent_step(exchange, following))
    numbered = [
        {"step_id": number, "timestamp": _stamp(exchanges[max(0, number - 3)].time), **step}
        for number, step in enumerate(steps, 1)
    ]
    usages = [one.usage for one in exchanges if one.usage]
    costs = [usage.cost for usage in usages]
    final: dict[str, Any] = {
        "total_prompt_tokens": sum(usage.prompt or 0 for usage in usages),
        "total_completion_tokens": sum(usage.completion or 0 for usage in usages),
        "total_cached_tokens": sum(usage.cached or 0 for usage in usages),
        "total_steps": len(numbered),
    }
    if len(costs) == len(exchanges) and None not in costs:
        final["total_cost_usd"] = sum(cost for cost in costs if cost is not None)
    return {
        "schema_version": ATIF,
        "session_id": journal.id,
        "agent": {"name": "sia", "version": str(journal.meta.get("commit", "unknown"))},
        "steps": numbered,
        "final_metrics": final,
        "extra": {"journal": dict(journal.meta), "head": journal.head},
    }


def _agent_step(exchange: Exchange, following: Exchange | None) -> dict[str, Any]:
    text = exchange.asked.prefix + exchange.reply
    step: dict[str, Any] = {"source": "agent", "message": text}
    action = _action(text)
    if action is not None:
        name = str(action.tag)
        body = "".join(map(str, action.itertext())).strip()
        if name == "reasoning":
            step["reasoning_content"] = body
        else:
            arguments = {str(key): str(value) for key, value in action.attrib.items()}
            call = f"call-{exchange.n}"
            step["tool_calls"] = [
                {"tool_call_id": call, "function_name": name, "arguments": {**arguments, "text": body}}
            ]
            if following is not None:
                step["observation"] = {"results": [{"source_call_id": call, "content": observed(exchange, following)}]}
    usage = exchange.usage
    if usage is not None:
        values = {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "cached_tokens": usage.cached,
            "cost_usd": usage.cost,
        }
        step["metrics"] = {name: value for name, value in values.items() if value is not None}
    return step


def _action(text: str) -> etree._Element | None:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True)
    try:
        return etree.fromstring(text.strip().encode("utf-8", "replace"), parser)
    except (etree.XMLSyntaxError, ValueError):
        return None


def observed(before: Exchange, after: Exchange) -> str:
    """The entries of the second context that the first did not show."""
    shown = [[piece.strip() for piece in cut(_without_end(prompt(one)).encode())[1:]] for one in (before, after)]
    known = set(shown[0])
    return b"\n".join(piece for piece in shown[1] if piece not in known).decode("utf-8", "replace")


def _without_end(text: str) -> str:
    kept = text.rstrip()
    return kept.removesuffix(_END).rstrip() if kept.endswith(_END) else text


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
