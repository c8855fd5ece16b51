"""Whether an agent's own iteration log tells of answers that nobody gave. The log is hostile input."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lxml import etree

from orchestrator.journal import Journal
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from orchestrator.captured import Stop

SECONDS = 60.0  # that comparing one log may take without the reading of it; one of ours takes milliseconds
SECONDS_EACH = 0.1  # more for each answer that was given
SEARCHES = 10  # answers for each one given that may stand in a log in another form than it was given in
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


def compare_log(journal: Journal, log: Iterable[tuple[str, bytes]], stop: Stop | None = None) -> LogComparison:
    """Every logged answer must be one that was given, whole or in part, with or without the prefix. A log that takes
    too long, or `stop`, ends it; a note says so."""
    given = [
        exchange.asked.prefix + exchange.reply
        for exchange in journal.replies()
        if exchange.kind == "infer" and (exchange.error is None or exchange.reply)
    ]
    return compare_answers(given, log, stop)


def compare_answers(given: Sequence[str], log: Iterable[tuple[str, bytes]], stop: Stop | None = None) -> LogComparison:
    """The same against a list of answers."""
    answers = _Given(given, stop)
    logged = strange = empty = 0
    notes = []
    try:
        for name, content in answers.clocked(log):
            answers.go_on()
            found = logged_answers(content)
            if not found:
                strange += name.endswith(".xml")  # texts that the log refers to lie beside it
                continue
            for answer in found:
                if not (known := answers.whole(answer)) and not answer.strip():
                    empty += 1  # tells of no answer, so it stands for none that was given
                    continue
                if not known and not answers.hold(answer):
                    shown, where = one_line(answer, 120), one_line(name, 80)
                    evidence = f"its iteration log ({where}) holds an answer that no engine gave: {shown!r}"
                    return LogComparison(evidence, ())
                logged += 1
    except _Enough as reason:
        notes.append(f"the agent's own log was compared in part, the first {logged:,} answers of it: {reason}")
    if strange:
        notes.append(f"{strange} files of the agent's own log have another format")
    if empty:
        notes.append(f"{empty} answers in the agent's own log are empty, where none was")
    if logged < len(given) and not answers.cut:
        notes.append(f"{len(given) - logged} of {len(given)} answers were not found in the agent's own log")
    return LogComparison(None, tuple(notes))


class _Enough(Exception):
    """Going on would take too long; why."""


class _Given:
    """The answers that were given. How often one is looked for, and for how long, is the log's choice: so it has a
    bound, and `cut` says that it was reached."""

    def __init__(self, texts: Sequence[str], stop: Stop | None) -> None:
        self._texts, self._stop = texts, stop
        self._seconds = SECONDS + SECONDS_EACH * len(texts)
        self._end = time.monotonic() + self._seconds
        self._exact = {_normal(text) for text in texts}
        self._loose: list[str] = []  # what was needed of it so far
        self._found: set[bytes] = set()
        self.cut = False

    def clocked(self, log: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        """The same files; the time until each of them comes does not count."""
        asked = time.monotonic()
        for file in log:
            self._end += time.monotonic() - asked
            yield file
            asked = time.monotonic()

    def go_on(self) -> None:
        """Raises _Enough when it is time to end."""
        if self._stop is not None and self._stop.is_set():
            raise self._enough("the trial was ended")
        if time.monotonic() > self._end:
            raise self._enough(f"it took more than {self._seconds:.0f} s")

    def whole(self, answer: str) -> bool:
        """Whether one was given that is the same."""
        return _normal(answer) in self._exact

    def hold(self, answer: str) -> bool:
        """Whether it is, or is a part of, one that was given, however the characters are shown. Raises _Enough."""
        self.go_on()
        wanted = _plain(answer)
        digest = hashlib.sha256(wanted.encode("utf-8", "surrogatepass")).digest()
        if digest in self._found:
            return True
        if len(self._found) >= SEARCHES * (len(self._texts) + 1):
            raise self._enough(f"{len(self._found):,} of them have another form than any that was given")
        for number, text in enumerate(self._texts):
            self.go_on()
            if number == len(self._loose):
                self._loose.append(_plain(text))
            if wanted in self._loose[number]:
                self._found.add(digest)
                return True
        return False

    def _enough(self, why: str) -> _Enough:
        self.cut = True
        return _Enough(why)


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
