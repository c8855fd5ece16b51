"""What is saved comes back exactly; what is damaged is kept aside and reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from instance.clock import Clock
from instance.entries import Entry, ParseErrorEntry, ReadEntry, ReasoningEntry, RepeatEntry, SingleEntry, WriteEntry
from instance.errors import StateDamaged
from instance.iobuffer import WebIOBuffer
from instance.memory import WorkingMemory
from instance.scripts import Script, ScriptResult, ScriptRunner
from instance.state import Counters, StateStore
from instance.text import visible

ODD = "  \n\ttext ]]> & <b> \r\x00\x1b\ud800 “ü€🦜” \n\n"


def entries(runner: ScriptRunner, clock: Clock) -> list[Entry]:
    odd, now = visible(ODD), clock.now()
    result = ScriptResult(odd, "", 137, True, True, False)
    return [
        ReasoningEntry(odd, "1", now),
        ParseErrorEntry(odd, odd, "2", now),
        ReadEntry(WebIOBuffer(), "3", now, odd),
        WriteEntry("", None, "4", now),
        SingleEntry(Script("ls", 1.25, 3), runner, "5", now, result),
        RepeatEntry(Script("never ran"), runner, "6", now),
        *long_entries(runner, clock),
    ]


def long_entries(runner: ScriptRunner, clock: Clock) -> list[Entry]:
    """Texts longer than what is kept of an unusable answer, and longer than what a script prints by default."""
    long, now = "ab ]]> &" * 4000, clock.now()
    return [
        ReasoningEntry(long, "7", now),
        ParseErrorEntry(long, long, "8", now),
        ParseErrorEntry.of(long, "too long", "9", now),
        ReadEntry(WebIOBuffer(), "10", now, long),
        WriteEntry(long, None, "11", now),
        SingleEntry(Script(long), runner, "12", now, ScriptResult(long, long, 0)),
    ]


def save(directory: Path, memory: WorkingMemory, io: WebIOBuffer | None = None) -> StateStore:
    store = StateStore(directory)
    store.save(Counters(7, 99, 12.5, True, 42), memory, io or WebIOBuffer(), durable=True)
    return store


@pytest.mark.spec("35")
def test_everything_comes_back(tmp_path: Path, memory: WorkingMemory, runner: ScriptRunner, clock: Clock) -> None:
    for entry in entries(runner, clock):
        memory.add_entry(entry)
    io = WebIOBuffer()
    io.append_stdin("in\x00")
    io.write("out")
    saved = save(tmp_path, memory, io).load(runner)
    assert saved is not None
    assert saved.counters == Counters(7, 99, 12.5, True, 42)
    assert (saved.incoming, saved.outgoing) == (b"in\x00", b"out")
    assert [entry.context_xml() for entry in saved.entries] == [entry.context_xml() for entry in memory.get_entries()]
    assert [entry.state_xml() for entry in saved.entries] == [entry.state_xml() for entry in memory.get_entries()]


def test_one_text_may_be_huge(tmp_path: Path, memory: WorkingMemory, runner: ScriptRunner, clock: Clock) -> None:
    """`limit` goes up to 9,999,999 characters; a parser takes no single text above 10 MB unless it is told to."""
    memory.add_entry(SingleEntry(Script("x"), runner, "1", clock.now(), ScriptResult("語" * 3_500_000, "", 0)))
    store = StateStore(tmp_path)
    store.save(Counters(), memory, WebIOBuffer())
    saved = store.load(runner)
    assert saved is not None and saved.entries[0].state_xml() == memory.get_entries()[0].state_xml()


def test_no_state(tmp_path: Path, runner: ScriptRunner) -> None:
    assert StateStore(tmp_path).load(runner) is None


@pytest.mark.parametrize("kind", [SingleEntry, RepeatEntry])
@pytest.mark.spec("35")
def test_a_script_that_was_cut_off(
    tmp_path: Path, memory: WorkingMemory, clock: Clock, runner: ScriptRunner, kind: type[SingleEntry | RepeatEntry]
) -> None:
    entry = kind(Script("touch ran"), runner, "1", clock.now())
    memory.add_entry(entry)
    entry.begin()
    saved = save(tmp_path, memory).load(runner)
    assert saved is not None
    assert 'interrupted="true"' in saved.entries[0].context_xml()
    again = WorkingMemory(runner)
    again.add_entry(saved.entries[0])
    again.update()
    assert not (tmp_path / "ran").exists(), "it ran again by itself"
    third = save(tmp_path, again).load(runner)
    assert third is not None and third.entries[0].held  # type: ignore[attr-defined]


def test_the_operator_may_have_it_run_again(
    tmp_path: Path, memory: WorkingMemory, clock: Clock, runner: ScriptRunner
) -> None:
    entry = SingleEntry(Script("touch ran"), runner, "1", clock.now())
    memory.add_entry(entry)
    entry.begin()
    saved = save(tmp_path, memory).load(runner, run_again=True)
    assert saved is not None and (tmp_path / "ran").exists()
    assert saved.entries[0].exit_code == 0  # type: ignore[attr-defined]


def damage(kind: str, content: bytes) -> bytes:
    return {
        "empty": b"",
        "half": content[: len(content) // 2],
        "zeros": b"\0" * len(content),
        "changed": content.replace(b"kept", b"kilt"),
        "newer": content.replace(b'version="1"', b'version="2"'),
        "other": b"<html/>",
        "binary": bytes(range(256)),
    }[kind]


KINDS = ["empty", "half", "zeros", "changed", "newer", "other", "binary"]


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_power_cut_the_safe_copy_is_used(
    tmp_path: Path, memory: WorkingMemory, runner: ScriptRunner, clock: Clock, kind: str
) -> None:
    memory.add_entry(ReasoningEntry("kept", "1", clock.now()))
    store = save(tmp_path, memory)
    (tmp_path / "agent.xml").write_bytes(damage(kind, (tmp_path / "agent.xml").read_bytes()))
    saved = store.load(runner)
    assert saved is not None and len(saved.entries) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_kept_aside(
    tmp_path: Path, memory: WorkingMemory, runner: ScriptRunner, clock: Clock, kind: str
) -> None:
    memory.add_entry(ReasoningEntry("kept", "1", clock.now()))
    store = save(tmp_path, memory)
    bad = damage(kind, (tmp_path / "agent.xml").read_bytes())
    for name in ("agent.xml", "agent.safe.xml"):
        (tmp_path / name).write_bytes(bad)
    with pytest.raises(StateDamaged, match="unreadable-1"):
        store.load(runner)
    assert (tmp_path / "unreadable-1" / "agent.xml").read_bytes() == bad
    assert store.load(runner) is None
