"""The saved state: working memory, both buffers and counters, as one XML file with a checksum.

`agent.xml` is renamed into place after every action (safe against a crash of the process). At most every few seconds,
and at an orderly end, the same bytes are also forced to disk, as `agent.xml` and as `agent.safe.xml`: after a power cut
one of the two is whole, and at most those seconds are lost.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from pathlib import Path
from typing import NamedTuple

from lxml import etree

from instance.clock import parse_stamp
from instance.entries import (
    LEFT_OUT,
    Entry,
    ParseErrorEntry,
    ReadEntry,
    ReasoningEntry,
    RepeatEntry,
    SingleEntry,
    WriteEntry,
)
from instance.errors import StartError, StateDamaged
from instance.files import write_whole
from instance.iobuffer import IOBuffer
from instance.memory import WorkingMemory
from instance.scripts import Script, ScriptResult, ScriptRunner
from instance.text import attribute, decode, escape, original, visible
from instance.validator import strict_parser

VERSION = 1
_SYNC_EVERY = 5.0  # seconds
_BETWEEN = ","  # troubles that were told
_NAMES = ("agent.xml", "agent.safe.xml")


class Counters(NamedTuple):
    """What goes on after a restart. `usage`: percent of the token limit; `stale`: repeats are due before all else.

    `told`: names of the troubles that go on and that the model knows of.
    """

    iteration: int = 0
    last_id: int = 0
    usage: float = 0.0
    stale: bool = False
    stdin_taken: int = 0  # bytes
    told: tuple[str, ...] = ()


class Saved(NamedTuple):
    """A state that was read."""

    counters: Counters
    entries: list[Entry]
    incoming: bytes
    outgoing: bytes


class StateStore:
    """Saves to and loads from one directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._synced_at = time.monotonic()
        self._lock = -1

    def lock(self) -> None:
        """Keep the directory for this process, until it ends. Raises StartError if another agent has it."""
        self._lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(f"another agent works with {self._directory.parent}\n  fix: pass --data DIR") from None

    def save(self, counters: Counters, memory: WorkingMemory, io: IOBuffer, *, durable: bool = False) -> None:
        """Replace the saved state. Raises OSError; the old one is then still there."""
        incoming, outgoing = io.get_state()
        numbers = f'iteration="{counters.iteration}" last_id="{counters.last_id}" usage="{counters.usage!r}"'
        flags = f'stale="{str(counters.stale).lower()}" stdin_taken="{counters.stdin_taken}"'
        body = "\n".join(
            (
                f'<counters {numbers} {flags} told="{attribute(_BETWEEN.join(counters.told))}"/>',
                f"<incoming>{_bytes_xml(incoming)}</incoming>",
                f"<outgoing>{_bytes_xml(outgoing)}</outgoing>",
                f"<memory>{''.join([entry.state_xml() for entry in memory.get_entries()])}</memory>",
            )
        )
        text = f'<state version="{VERSION}" checksum="{_checksum(body)}">{body}</state>\n'
        durable = durable or time.monotonic() - self._synced_at > _SYNC_EVERY
        write_whole(self._directory / _NAMES[0], text, durable=durable)
        if durable:
            write_whole(self._directory / _NAMES[1], text, durable=True)
            self._synced_at = time.monotonic()

    def load(self, runner: ScriptRunner, *, run_again: bool = False) -> Saved | None:
        """The newest state that can be read, or None if there is none.

        Raises StateDamaged if there are files but none can be read; they are first renamed, never deleted. A script
        that was running when the state was saved is marked as interrupted, and held unless `run_again`.
        """
        reasons = []
        for name in _NAMES:
            path = self._directory / name
            try:
                return _read(path.read_bytes(), runner, run_again)
            except FileNotFoundError:
                continue
            except (OSError, StateDamaged) as error:
                reasons.append(f"{name}: {error}")
        if reasons:
            aside = self._set_aside()
            raise StateDamaged(f"{'; '.join(reasons)}. The files are kept as {aside}.")
        return None

    def _set_aside(self) -> str:
        number = 1
        while (self._directory / f"unreadable-{number}").exists():
            number += 1
        aside = self._directory / f"unreadable-{number}"
        aside.mkdir()
        for name in _NAMES:
            if (self._directory / name).exists():
                (self._directory / name).replace(aside / name)
        return f"state/{aside.name}"


def _read(data: bytes, runner: ScriptRunner, run_again: bool) -> Saved:
    try:
        root = etree.fromstring(data, strict_parser(huge=True))  # one output may be 10 million characters
    except etree.XMLSyntaxError as error:
        raise StateDamaged(f"it is not whole ({error.msg})") from error
    version = root.get("version", "")
    if root.tag != "state" or version != str(VERSION):
        raise StateDamaged(f"its version is {version[:20]!r}, this agent reads version {VERSION}")
    body = data.decode().partition(">")[2].rpartition("</state>")[0]
    if root.get("checksum") != _checksum(body):
        raise StateDamaged("its checksum does not match")
    try:
        counters = root.find("counters")
        memory = root.find("memory")
        if counters is None or memory is None:
            raise StateDamaged("a part of it is missing")
        return Saved(
            Counters(
                int(counters.attrib["iteration"]),
                int(counters.attrib["last_id"]),
                float(counters.attrib["usage"]),
                counters.attrib["stale"] == "true",
                int(counters.attrib["stdin_taken"]),
                tuple(filter(None, counters.get("told", "").split(_BETWEEN))),
            ),
            [_entry(element, runner, run_again) for element in memory],
            _bytes(root, "incoming"),
            _bytes(root, "outgoing"),
        )
    except (ValueError, KeyError) as error:
        raise StateDamaged(f"an entry in it can't be read ({error})") from error


def _entry(element: etree._Element, runner: ScriptRunner, run_again: bool) -> Entry:
    entry = _made(element, runner, run_again)
    entry.shed = max(0, min(int(element.get("shed", "0")), LEFT_OUT))
    return entry


def _made(element: etree._Element, runner: ScriptRunner, run_again: bool) -> Entry:
    id, moment, text = str(element.attrib["id"]), parse_stamp(str(element.attrib["time"])), element.text or ""
    match element.tag:
        case "reasoning":
            return ReasoningEntry(text, id, moment)
        case "read_stdin":
            return ReadEntry(_Nothing(), id, moment, text)
        case "write_stdout":
            return WriteEntry(text, None, id, moment)
        case "parse_error":
            return ParseErrorEntry(element.findtext("content", ""), element.findtext("error", ""), id, moment)
        case "single" | "repeat":
            kind = SingleEntry if element.tag == "single" else RepeatEntry
            script = Script(text, float(element.attrib["timeout"]), int(element.attrib["limit"]))
            cut_off = element.get("running") == "true"
            held = (cut_off or element.get("held") == "true") and not run_again
            entry = kind(script, runner, id, moment, _result(element, cut_off), held=held)
            if cut_off and run_again and isinstance(entry, SingleEntry):
                entry.update()
            return entry
        case _:
            raise ValueError(f"unknown kind {element.tag!r}")


def _result(element: etree._Element, cut_off: bool) -> ScriptResult:
    code = element.get("exit_code")
    return ScriptResult(
        element.findtext("stdout", ""),
        element.findtext("stderr", ""),
        None if code is None or cut_off else int(code),
        element.get("timed_out") == "true" and not cut_off,
        element.get("truncated") == "true",
        cut_off or element.get("interrupted") == "true",
    )


class _Nothing(IOBuffer):
    """Stands for the user where an entry is made from a saved text."""

    def read(self) -> str:
        return ""

    def write(self, content: str) -> None:
        pass

    def buffer_length(self) -> int:
        return 0


def _bytes_xml(data: bytes) -> str:
    return escape(visible(decode(data)))


def _bytes(root: etree._Element, name: str) -> bytes:
    return original(root.findtext(name, "")).encode("utf-8", "surrogateescape")


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
