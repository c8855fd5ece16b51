"""Whatever a model answers and whatever a script prints: nothing breaks, and it comes back from log, state and line.

Each property holds for generated input and for every file of `corpus/` (inputs that broke such programs before).
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from instance.clock import FixedClock, SequentialIds, parse_stamp
from instance.commands import Command
from instance.engine import LlmEngine
from instance.entries import KEPT_ANSWER, Entry, ParseErrorEntry, ReasoningEntry, RepeatEntry, SingleEntry
from instance.errors import Unusable
from instance.iobuffer import WebIOBuffer
from instance.log import IterationLogger
from instance.memory import WorkingMemory
from instance.parser import ResponseParser
from instance.renderer import DocumentRenderer, Renderer, compile_document
from instance.scripts import Capture, Script, ScriptResult, ScriptRunner
from instance.signals import Interrupt
from instance.state import Counters, StateStore
from instance.text import decode, original, visible
from instance.transcript import TranscriptRenderer
from instance.validator import XMLValidator, strict_parser
from orchestrator.protocol import parse_request

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"
ANSWERS, OUTPUTS = sorted((CORPUS / "answers").iterdir()), sorted((CORPUS / "outputs").iterdir())
VALIDATOR = XMLValidator((ROOT / "action_schema.xsd").read_text())
CLOCK = FixedClock(parse_stamp("2025-01-01T00:00:00Z"))
RUNNER = ScriptRunner({}, Interrupt())  # nothing is run here
RENDERERS: tuple[Renderer, ...] = (DocumentRenderer("s", "x"), TranscriptRenderer("s", "x"))

TEXT = st.text(
    alphabet=st.characters() | st.sampled_from("‹›U+01\r\n\x00\x1b\x04\x15]>&<\ud800\ufffe\"' "), max_size=60
)
NAME = st.sampled_from(
    ["single", "repeat", "delete", "stop", "read_stdin", "write_stdout", "reasoning", "x:y", "context"]
)
VALUE = TEXT | st.sampled_from(["1", "0", "-1", "NaN", "2.5"])
ATTRIBUTE = st.tuples(st.sampled_from(["id", "timeout", "limit", "xmlns", "xml:space", "a"]), VALUE)
MARKUP = ["<stdout>x</stdout>", "&lt;&amp;", "&x;", "&#27;", "<!-- - -->", "<?a b?>", "]]>", "<single>ls</single>"]
BODY = st.one_of(TEXT, TEXT.map(lambda text: f"<![CDATA[{text}]]>"), st.sampled_from(MARKUP))


def _element(name: str, attributes: Sequence[tuple[str, str]], body: Sequence[str], closed: bool) -> str:
    head = "".join(f' {key}="{value}"' for key, value in attributes)
    return f"<{name}{head}>{''.join(body)}" + (f"</{name}>" if closed else "")


ELEMENT = st.builds(
    _element, NAME, st.lists(ATTRIBUTE, max_size=2), st.lists(BODY, max_size=3), st.integers(0, 9).map(bool)
)
BEFORE = st.sampled_from(["", "\ufeff", "```xml\n", "<!DOCTYPE a>", "<?xml version='1.0'?>"])
ANSWER = st.one_of(TEXT, ELEMENT, st.tuples(BEFORE, ELEMENT, TEXT).map("".join))
MORE = st.just(0) | st.integers(0, KEPT_ANSWER + 1000)


def action(answer: str, parser: ResponseParser, ids: SequentialIds) -> Command | Entry:
    """What the agent makes of an answer."""
    error = VALIDATOR.validate(answer)
    if error is None:
        try:
            return parser.parse(answer)
        except Unusable as unusable:
            error = str(unusable)
    assert error.strip(), "an error is told in words"
    return ParseErrorEntry.of(answer, error, ids.next(), CLOCK.now())


def check_answer(answer: str, directory: Path) -> None:
    """An answer becomes a command or an entry; log, state, both renderers and the line carry it."""
    ids, io = SequentialIds(), WebIOBuffer()
    made = action(answer, ResponseParser(io, RUNNER, ids, CLOCK), ids)
    if isinstance(made, Entry):
        check_entry(made, directory)
        if isinstance(made, ParseErrorEntry) and len(visible(answer)) <= KEPT_ANSWER:
            assert original(made.content) == answer
    path = IterationLogger(directory / "log", "system", "schema").log_iteration(1, "<context/>", answer)
    logged = etree.fromstring(path.read_bytes(), strict_parser())
    assert [child.tag for child in logged] == ["context", "response"]
    assert original(logged.findtext("response") or "") == answer


def check_entry(entry: Entry, directory: Path) -> None:
    """It shows itself as one well-formed element, alone and in a prompt, and comes back from the state as it was."""
    assert etree.fromstring(entry.context_xml()).tag == entry.element == entry.generate_context().tag
    memory = WorkingMemory(RUNNER)
    memory.add_entry(entry)
    store = StateStore(directory / "state")
    store.save(Counters(), memory, WebIOBuffer())
    saved = store.load(RUNNER)
    assert saved is not None and [one.state_xml() for one in saved.entries] == [entry.state_xml()]
    for level in range(4):
        entry.shed = saved.entries[0].shed = level
        assert saved.entries[0].context_xml() == entry.context_xml()
        assert saved.entries[0].turns() == entry.turns()
        check_line(entry)
    entry.shed = 0


def check_line(entry: Entry) -> None:
    """What is asked over the line is what the other side reads, up to line ends."""
    engine = LlmEngine.__new__(LlmEngine)
    engine._schema_path = "schema"
    for renderer in RENDERERS:
        prompt = renderer.render({"time": "t"}, [entry])
        request = parse_request(engine._request("infer_xml", prompt.system, prompt.context, "").encode())
        sent = prompt.context if isinstance(prompt.context, str) else [tuple(turn) for turn in prompt.context]
        assert sent == (request.context or [(turn.role, turn.text) for turn in request.turns])
        etree.fromstring(prompt.document)


def check_output(data: bytes, cuts: Sequence[int], limit: int, directory: Path) -> None:
    """Output in any pieces is kept up to its limit, shown, saved, and the bytes can be had back."""
    capture = Capture(limit)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        capture.feed(data[start:end])
    capture.feed(b"", final=True)
    text = capture.text()
    if not capture.truncated:
        assert original(text).encode("utf-8", "surrogateescape") == data
    assert len(text) <= limit + 60, "the limit is for what is shown"
    for kind in (SingleEntry, RepeatEntry):
        entry = kind(Script("x"), RUNNER, "1", CLOCK.now(), ScriptResult(text, text, 0))
        check_entry(entry, directory)
        shown = etree.fromstring(entry.context_xml())
        assert [shown.findtext(name) or "" for name in ("stdout", "stderr")] == [text, text]


@settings(deadline=2000)  # milliseconds
@given(ANSWER, st.sampled_from("y\x00]&"), MORE)
def test_any_answer(tmp_path_factory: pytest.TempPathFactory, answer: str, end: str, more: int) -> None:
    check_answer(answer + end * (more // len(visible(end))), scratch(tmp_path_factory))


@pytest.mark.parametrize("path", ANSWERS, ids=lambda path: path.stem)
def test_answers_of_the_corpus(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    check_answer(data.decode("utf-8", "replace"), tmp_path)
    check_answer(data.decode("utf-8", "surrogateescape"), tmp_path)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5), st.integers(0, 300))
def test_any_output(tmp_path_factory: pytest.TempPathFactory, data: bytes, cuts: list[int], limit: int) -> None:
    check_output(data, cuts, limit, scratch(tmp_path_factory))


@pytest.mark.parametrize("path", OUTPUTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("limit", [0, 1, 50, 10_000])
def test_outputs_of_the_corpus(path: Path, limit: int, tmp_path: Path) -> None:
    check_output(path.read_bytes(), [1, 2, 5, 100], limit, tmp_path)


@given(st.lists(TEXT, max_size=6), st.lists(st.sampled_from(range(6)), max_size=4))
def test_any_memory(tmp_path_factory: pytest.TempPathFactory, texts: list[str], deleted: list[int]) -> None:
    """Entries of any texts, some deleted: the compiled document has the others, in order, and the state too."""
    memory, ids = WorkingMemory(RUNNER), SequentialIds()
    for text in texts:
        memory.add_entry(ReasoningEntry(visible(text), ids.next(), CLOCK.now()))
    names = [entry.id for entry in memory.get_entries()]
    for number in deleted:
        if number < len(names):
            memory.remove_entry(names[number])
    left = [entry.id for entry in memory.get_entries()]
    root = etree.fromstring(compile_document({"time": "t"}, memory.get_entries()))
    assert [child.get("id") for child in root] == left
    store = StateStore(scratch(tmp_path_factory) / "state")
    store.save(Counters(), memory, WebIOBuffer())
    saved = store.load(RUNNER)
    assert saved is not None
    assert [entry.context_xml() for entry in saved.entries] == [entry.context_xml() for entry in memory.get_entries()]


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_of_the_user_are_saved(tmp_path_factory: pytest.TempPathFactory, sent: bytes, queued: bytes) -> None:
    class Buffers(WebIOBuffer):
        def get_state(self) -> tuple[bytes, bytes]:
            return sent, queued

    store = StateStore(scratch(tmp_path_factory) / "state")
    store.save(Counters(), WorkingMemory(RUNNER), Buffers())
    saved = store.load(RUNNER)
    assert saved is not None and (saved.incoming, saved.outgoing) == (sent, queued)
    io = WebIOBuffer()
    io.append_stdin(decode(sent))
    assert original(io.read()).encode("utf-8", "surrogateescape") == sent


@given(st.binary(max_size=400))
def test_any_state_file(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """A state of any bytes is refused and kept aside, never half read."""
    from instance.errors import StateDamaged

    directory = scratch(tmp_path_factory) / "damaged"
    store = StateStore(directory)
    (directory / "agent.xml").write_bytes(data)
    with pytest.raises(StateDamaged):
        store.load(RUNNER)
    aside = max(directory.glob("unreadable-*"), key=lambda path: int(re.sub(r"\D", "", path.name)))
    assert (aside / "agent.xml").read_bytes() == data


def scratch(factory: pytest.TempPathFactory, made: dict[int, Path] = {}) -> Path:  # noqa: B006
    """One directory for all examples of this process."""
    if os.getpid() not in made:
        made[os.getpid()] = factory.mktemp("properties")
    return made[os.getpid()]
