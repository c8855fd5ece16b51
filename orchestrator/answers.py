"""What the given answers were worth, and whether an agent's own log tells of answers that nobody gave.

Everything here is computed from the journal, with the candidate's schema; nothing from what the candidate reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lxml import etree

from orchestrator.answer_checker import AnswerChecker, Checked, checker, close_checkers, schema_fault
from orchestrator.journal import Exchange, Journal
from orchestrator.untrusted import one_line

__all__ = [
    "AnswerChecker",
    "AnswerMetrics",
    "Checked",
    "LogComparison",
    "answered",
    "checker",
    "close_checkers",
    "compare_log",
    "metrics",
    "schema_fault",
    "tampering",
    "valid",
]

# How programs show a character that XML can't carry: ‹U+001B›, \x1b, \u001b, \033, &#27;, ␛, U+FFFD.
_ESCAPES = re.compile(
    r"‹U\+[0-9A-Fa-f]{4,6}›|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[0-3][0-7]{2}|&#x?[0-9A-Fa-f]{1,6};"
    "|[‹\u2400-\u2421\ufffd]"
)
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class AnswerMetrics:
    """Counts over the answered inferences of a journal.

    `repeated_actions`: valid actions that equal an earlier one of the journal (`read_stdin` aside). `context_growth`:
    bytes by which a request grew per inference, first to last. `note`: what could not be judged, and why.
    """

    answers: int
    parse_errors: int
    repeated_actions: int
    deletes: int
    context_growth: float
    note: str | None = None


@dataclass(frozen=True)
class LogComparison:
    """An agent's own iteration log against the journal. `tampering` disqualifies; `notes` do not."""

    tampering: str | None
    notes: tuple[str, ...]


def answered(exchange: Exchange) -> bool:
    """Whether an exchange is an inference that got a whole answer: an iteration."""
    return exchange.kind == "infer" and exchange.error is None


def valid(exchange: Exchange, schema: bytes) -> bool:
    """Whether an exchange is an iteration with a valid action (what a trial boot is judged by)."""
    return answered(exchange) and checker(schema).check(exchange.asked.prefix + exchange.reply).error is None


def metrics(journal: Journal, schema: bytes) -> AnswerMetrics:
    """Parse errors, repeated actions, deletes and context growth of a journal, judged by the candidate's schema."""
    check = checker(schema)
    seen: set[str] = set()
    sizes: list[int] = []
    errors = repeated = deletes = 0
    for exchange in journal.replies():
        if not answered(exchange):
            continue
        sizes.append(exchange.asked.size)
        result = check.check(exchange.asked.prefix + exchange.reply)
        if result.error is not None:
            errors += 1
            continue
        deletes += result.action == "delete"
        repeated += result.key in seen and result.action != "read_stdin"
        seen.add(result.key)
    growth = (sizes[-1] - sizes[0]) / (len(sizes) - 1) if len(sizes) > 1 else 0.0
    note = f"answers were only checked for well-formedness: {check.fault}" if check.fault else None
    return AnswerMetrics(len(sizes), errors, repeated, deletes, growth, note)


def tampering(journal: Journal, log: Iterable[tuple[str, bytes]]) -> str | None:
    """Evidence, in words, that the agent's own log holds an answer that no engine gave; None if there is none.

    `log`: name and content of each iteration file in the trial's own upper, read safely by the caller.
    """
    return compare_log(journal, log).tampering


def compare_log(journal: Journal, log: Iterable[tuple[str, bytes]]) -> LogComparison:
    """Every logged answer must be one that was given, whole or in part, with or without the prefix."""
    given = [exchange.asked.prefix + exchange.reply for exchange in journal.replies() if exchange.kind == "infer"]
    exact = {_normal(text) for text in given}
    loose: list[str] | None = None
    logged = strange = 0
    for name, content in log:
        answer = _logged_answer(content)
        if answer is None:
            strange += name.endswith(".xml")  # texts that the log refers to lie beside it
            continue
        logged += 1
        if _normal(answer) in exact:
            continue
        loose = loose if loose is not None else [_plain(text) for text in given]
        wanted = _plain(answer)
        if not any(wanted in text for text in loose):
            shown = one_line(answer, 120)
            where = one_line(name, 80)
            return LogComparison(f"its iteration log ({where}) holds an answer that no engine gave: {shown!r}", ())
    notes = []
    if strange:
        notes.append(f"{strange} files of the agent's own log have another format")
    if logged < len(given):
        notes.append(f"{len(given) - logged} of {len(given)} answers are not in the agent's own log")
    return LogComparison(None, tuple(notes))


def _logged_answer(content: bytes) -> str | None:
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True, encoding="utf-8"
    )
    try:
        root = etree.fromstring(content, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None
    if root.getroottree().docinfo.doctype:  # type: ignore[union-attr]  # missing in lxml-stubs
        return None
    response = root.find("response") if root.tag == "iteration" else None
    return None if response is None else "".join(map(str, response.itertext()))


def _normal(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _plain(text: str) -> str:
    return _normal(_UNFIT.sub("", _ESCAPES.sub("", text.replace("‹U+2039›", "‹"))))  # an escaped escape
