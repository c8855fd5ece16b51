"""Whether an agent's own iteration log tells of answers that nobody gave. The log is hostile input."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lxml import etree

from orchestrator.journal import Journal
from orchestrator.untrusted import one_line

ELEMENTS_CAP = 100_000  # of one file; a log of ours has four, and each costs time
# How programs show a character that XML can't carry: ‹U+001B›, \x1b, \u001b, \033, &#27;, ␛, U+FFFD.
_ESCAPES = re.compile(
    r"‹U\+(?P<angle>[0-9A-Fa-f]{4,6})›|\\x(?P<x>[0-9A-Fa-f]{2})|\\u(?P<u>[0-9A-Fa-f]{4})|\\(?P<octal>[0-3][0-7]{2})"
    r"|&#(?:x(?P<entity>[0-9A-Fa-f]{1,6})|(?P<decimal>[0-9]{1,7}));|[‹\u2400-\u2421\ufffd]"
)
_BASES = {"octal": 8, "decimal": 10}
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class LogComparison:
    """An agent's own iteration log against the journal. `tampering` disqualifies; `notes` do not."""

    tampering: str | None
    notes: tuple[str, ...]


def tampering(journal: Journal, log: Iterable[tuple[str, bytes]]) -> str | None:
    """Evidence, in words, that the agent's own log holds an answer that no engine gave; None if there is none.

    `log`: name and content of each iteration file in the trial's own upper, read safely by the caller.
    """
    return compare_log(journal, log).tampering


def compare_log(journal: Journal, log: Iterable[tuple[str, bytes]]) -> LogComparison:
    """Every logged answer must be one that was given, whole or in part, with or without the prefix."""
    given = [exchange.asked.prefix + exchange.reply for exchange in journal.replies() if exchange.kind == "infer"]
    return compare_answers(given, log)


def compare_answers(given: Sequence[str], log: Iterable[tuple[str, bytes]]) -> LogComparison:
    """The same against a list of answers."""
    exact = {_normal(text) for text in given}
    loose: list[str] | None = None
    logged = strange = empty = 0
    for name, content in log:
        found = logged_answers(content)
        if not found:
            strange += name.endswith(".xml")  # texts that the log refers to lie beside it
            continue
        for answer in found:
            if _normal(answer) in exact:
                logged += 1
                continue
            if not answer.strip():  # tells of no answer, so it stands for none that was given
                empty += 1
                continue
            logged += 1
            loose = loose if loose is not None else [_plain(text) for text in given]
            wanted = _plain(answer)
            if not any(wanted in text for text in loose):
                shown, where = one_line(answer, 120), one_line(name, 80)
                return LogComparison(f"its iteration log ({where}) holds an answer that no engine gave: {shown!r}", ())
    notes = []
    if strange:
        notes.append(f"{strange} files of the agent's own log have another format")
    if empty:
        notes.append(f"{empty} answers in the agent's own log are empty, where none was")
    if logged < len(given):
        notes.append(f"{len(given) - logged} of {len(given)} answers are not in the agent's own log")
    return LogComparison(None, tuple(notes))


class _NotALog(Exception):
    pass


class _Responses:
    """Receives the events of the parser: no tree is built, which would take many times the file's size."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self._path: list[str] = []
        self._parts: list[str] = []
        self._inside = 0  # depth of the answer that is being read
        self._count = 0

    def doctype(self, *_: object) -> None:
        raise _NotALog

    def comment(self, data: str | bytes) -> None:
        pass  # the parser removes them

    def start(self, tag: str | bytes, attrib: object) -> None:
        self._count += 1
        if self._count > ELEMENTS_CAP:
            raise _NotALog
        self._path.append(str(tag))
        if not self._inside and self._path[-2:] == ["iteration", "response"] and "context" not in self._path:
            self._inside = len(self._path)

    def data(self, data: str | bytes) -> None:
        if self._inside:
            self._parts.append(str(data))

    def end(self, tag: str | bytes) -> None:
        if self._inside == len(self._path):
            self.answers.append("".join(self._parts))
            self._parts.clear()
            self._inside = 0
        self._path.pop()

    def close(self) -> list[str]:
        return self.answers


def logged_answers(content: bytes) -> list[str]:
    """All answers in one file of a log, in order (one, in ours); none if it has another format."""
    parser = etree.XMLParser(
        target=_Responses(),
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        remove_comments=True,
        remove_pis=True,
        encoding="utf-8",
    )
    try:
        return list(etree.fromstring(content, parser))  # what the target's close() gives
    except (etree.XMLSyntaxError, ValueError, _NotALog):
        return []


def _normal(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _plain(text: str) -> str:
    """Without the characters that XML can't carry, however they are shown. Escapes of other characters are read:
    else any text at all could be logged in escapes that stand for nothing."""
    return _normal(_UNFIT.sub("", _ESCAPES.sub(_meant, text.replace("‹U+2039›", "‹"))))  # an escaped escape


def _meant(match: re.Match[str]) -> str:
    name = match.lastgroup
    if name is None:
        return ""
    code = int(match[name], _BASES.get(name, 16))
    return chr(code) if 0 < code < 0x110000 else ""
