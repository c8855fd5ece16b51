"""Working memory, entries, commands and the parser that makes them."""

from __future__ import annotations

import pytest
from lxml import etree

from instance.clock import Clock, SequentialIds, TimeIds
from instance.commands import DeleteCommand, StopCommand
from instance.entries import (
    ParseErrorEntry,
    ReadEntry,
    ReasoningEntry,
    RepeatEntry,
    ScriptEntry,
    SingleEntry,
    WriteEntry,
)
from instance.errors import Unusable
from instance.iobuffer import WebIOBuffer
from instance.memory import WorkingMemory
from instance.parser import ResponseParser
from instance.renderer import DocumentRenderer
from instance.scripts import ScriptResult, ScriptRunner


@pytest.fixture
def io() -> WebIOBuffer:
    return WebIOBuffer()


@pytest.fixture
def parser(io: WebIOBuffer, runner: ScriptRunner, ids: SequentialIds, clock: Clock) -> ResponseParser:
    return ResponseParser(io, runner, ids, clock)


@pytest.mark.spec("5")
@pytest.mark.spec("23")
@pytest.mark.spec("24")
def test_each_action_becomes_its_class(parser: ResponseParser, io: WebIOBuffer) -> None:
    io.append_stdin("hello\x00")
    assert isinstance(parser.parse("<stop/>"), StopCommand)
    delete = parser.parse('<delete id=" a1 "/>')
    assert isinstance(delete, DeleteCommand) and delete.id == "a1"
    reasoning = parser.parse("<reasoning>\n a <!-- lost -->b\n</reasoning>")
    assert isinstance(reasoning, ReasoningEntry) and reasoning.content == "a b"
    read = parser.parse("<read_stdin/>")
    assert isinstance(read, ReadEntry) and read.content == "hello‹U+0000›"
    write = parser.parse("<write_stdout> hé </write_stdout>")
    assert isinstance(write, WriteEntry) and io.get_stdout() == "hé\n"
    single = parser.parse('<single timeout="1.5" limit="7"><![CDATA[ a && b ]]></single>')
    assert isinstance(single, SingleEntry) and single.request == ("a && b", 1.5, 7)
    repeat = parser.parse("<repeat>ls</repeat>")
    assert isinstance(repeat, RepeatEntry) and repeat.request == ("ls", 60.0, 20_000), "the defaults"


@pytest.mark.parametrize("answer", ["<single/>", "<repeat>  \n </repeat>", "<unknown/>"])
def test_what_can_not_be_done_is_said(parser: ResponseParser, answer: str) -> None:
    with pytest.raises(Unusable):
        parser.parse(answer)


@pytest.mark.spec("21")
@pytest.mark.spec("26")
def test_memory(memory: WorkingMemory, clock: Clock) -> None:
    first, second = ReasoningEntry("a", "1", clock.now()), ParseErrorEntry("b", "c", "2", clock.now())
    memory.add_entry(first)
    memory.add_entry(second)
    with pytest.raises(ValueError, match="already"):
        memory.add_entry(ReasoningEntry("again", "1", clock.now()))
    assert memory.get_entries() == [first, second] and memory.get_entries_count() == 2
    assert memory.get_entries_by_type(ParseErrorEntry) == [second] and memory.get_entry("1") is first
    assert [element.tag for element in memory.generate_context()] == ["reasoning", "parse_error"]
    unknown = DeleteCommand("nope").execute(memory)
    assert not unknown.success and "'nope'" in unknown.message and "1, 2" in unknown.message
    assert DeleteCommand("1").execute(memory).success
    assert StopCommand().execute(memory).should_stop
    memory.clear()
    assert memory.get_entries() == [] and memory.get_entry("2") is None


@pytest.mark.spec("24")
def test_an_entry_that_leaves_the_memory_lets_go(memory: WorkingMemory, clock: Clock) -> None:
    gone = []

    class Holding(ReasoningEntry):
        def cleanup(self) -> None:
            gone.append(self.id)

    for id in ("1", "2", "3"):
        memory.add_entry(Holding("held", id, clock.now()))
    assert DeleteCommand("2").execute(memory).success and gone == ["2"]
    memory.clear()
    assert gone == ["2", "1", "3"]


@pytest.mark.spec("24")
@pytest.mark.parametrize("name", ["id", "timestamp"])
def test_what_never_changes(clock: Clock, name: str) -> None:
    entry = ReasoningEntry("a", "1", clock.now())
    with pytest.raises(AttributeError):
        setattr(entry, name, getattr(entry, name))


@pytest.mark.spec("6")
def test_repeats_run_in_every_update(memory: WorkingMemory, parser: ResponseParser) -> None:
    entry = parser.parse("<repeat>echo x >>count; wc -l &lt;count</repeat>")
    assert isinstance(entry, RepeatEntry)
    memory.add_entry(entry)
    marked = []
    for _ in range(2):
        memory.update(before=lambda: marked.append(entry.running))
    assert entry.stdout == "2\n" and marked == [True, True] and not entry.running
    entry.held = True
    memory.update()
    assert entry.stdout == "2\n"


@pytest.mark.spec("4")
def test_layout_of_the_context(parser: ResponseParser) -> None:
    entry = parser.parse("<single>echo hi; exit 2</single>")
    assert isinstance(entry, ScriptEntry)
    entry.update()
    assert entry.context_xml() == (
        f'<single id="{entry.id}" exit_code="2">\n<![CDATA[echo hi; exit 2]]>\n'
        "<stdout><![CDATA[hi\n]]></stdout>\n<stderr/>\n</single>"
    )
    assert entry.context_xml() is entry.context_xml(), "it is built once"
    for name in ("timed_out", "truncated", "interrupted"):
        entry.finish(ScriptResult()._replace(**{name: True}))
        assert dict(entry.generate_context().attrib) == {"id": entry.id, name: "true"}
    entry.finish(ScriptResult("hi\n", "", 2))
    error = ParseErrorEntry("<delete/> ]]>", "what & why", "e1", entry.timestamp)
    assert error.context_xml() == (
        '<parse_error id="e1">\n<error><![CDATA[what & why]]></error>\n'
        "<content>&lt;delete/&gt; ]]&gt;</content>\n</parse_error>"
    )
    document = DocumentRenderer("system", "schema").render({"time": "t", "stdin": "0"}, [entry, error]).document
    root = etree.fromstring(document)
    assert dict(root.attrib) == {"time": "t", "stdin": "0"} and [child.tag for child in root] == [
        "single",
        "parse_error",
    ]
    assert DocumentRenderer("system", "schema").render({"a": '"<'}, []).document == '<context\na="&quot;&lt;"\n/>'


@pytest.mark.parametrize("character", ["y", "\x00"])
def test_long_answers_are_cut_in_their_entry(clock: Clock, character: str) -> None:
    entry = ParseErrorEntry.of(character * 100_000, "too long", "e", clock.now())
    assert len(entry.context_xml()) < 21_000


@pytest.mark.spec("27")
def test_ids_are_short_and_ordered() -> None:
    ids = TimeIds()
    made = [ids.next() for _ in range(1000)]
    assert made == sorted(made) and len(set(made)) == 1000 and max(map(len, made)) == 7
    later = TimeIds()
    later.last = ids.last + 10
    assert later.next() > made[-1]
