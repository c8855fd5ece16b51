"""The conversation that a transcript makes of entries: order, stability, what a scripted engine reads in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from lxml import etree

from instance.clock import Clock, SequentialIds
from instance.engine import Turn
from instance.entries import Entry, ParseErrorEntry, ReadEntry, ReasoningEntry, RepeatEntry, SingleEntry, WriteEntry
from instance.errors import StartError
from instance.iobuffer import WebIOBuffer
from instance.renderer import DocumentRenderer, Prompt, choose_renderer
from instance.scripts import Script, ScriptResult, ScriptRunner
from instance.transcript import BEGIN, TranscriptRenderer, load_examples
from orchestrator.engines.scripted.model import document
from orchestrator.protocol import Request
from orchestrator.protocol import Turn as AskedTurn

ATTRIBUTES = {"time": "2025-01-01T00:00:00Z", "cpu": "3", "context": "12", "stdin": "0"}


def entries(runner: ScriptRunner) -> list[Entry]:
    ids, now, ended = SequentialIds(), Clock().now(), ScriptResult("out ]]> \n", "", 3)
    return [
        ReadEntry(WebIOBuffer(), ids.next(), now, "do it"),
        ReasoningEntry("a < b", ids.next(), now),
        ParseErrorEntry("", "The disk is full.", ids.next(), now),
        SingleEntry(Script("ls && ls", 2.5, 10), runner, ids.next(), now, ended),
        RepeatEntry(Script("date"), runner, ids.next(), now, ScriptResult("today", "", 0)),
        ParseErrorEntry("<delete/>", "Missing id", ids.next(), now),
        WriteEntry("done", None, ids.next(), now),
    ]


def turns(prompt: Prompt) -> list[Turn]:
    assert not isinstance(prompt.context, str)
    return list(prompt.context)


@pytest.mark.spec("17")
def test_a_conversation(runner: ScriptRunner) -> None:
    made = turns(TranscriptRenderer("system", "schema").render(ATTRIBUTES, entries(runner)))
    assert [turn.role for turn in made] == ["user", "assistant"] * 6 + ["user"]
    assert made[0].text == BEGIN
    assert made[1].text == "<read_stdin/>" and "do it" in made[2].text and 'id="0000001"' in made[2].text
    assert made[3].text == "<reasoning>\n<![CDATA[a < b]]>\n</reasoning>"
    assert made[4].text.startswith('<reasoning id="0000002"/>\n<parse_error id="0000003">'), "nothing was answered here"
    assert made[5].text == '<single timeout="2.5" limit="10">\n<![CDATA[ls && ls]]>\n</single>'
    assert made[6].text == ('<single id="0000004" exit_code="3">\n<stdout>out ]]&gt; \n</stdout>\n<stderr/>\n</single>')
    assert made[8].text == "It runs as 0000005." and made[9].text == "<delete/>"
    status = etree.fromstring(made[-1].text.partition("\n")[2])
    assert dict(status.attrib) == ATTRIBUTES
    assert [child.tag for child in status] == ["repeat"] and status.findtext("repeat/stdout") == "today"


@pytest.mark.spec("17")
def test_turns_stay_as_they_are(runner: ScriptRunner) -> None:
    """All but the last turn is the beginning of every later conversation; a document changes in its first line."""
    renderer, made = TranscriptRenderer("system", "schema"), entries(runner)
    for count in range(len(made)):
        before = turns(renderer.render(ATTRIBUTES, made[:count]))
        after = turns(renderer.render(ATTRIBUTES | {"cpu": "99", "context": "13"}, made[: count + 1]))
        assert after[: len(before) - 1] == before[:-1]
        stable = before[-1].text.partition("<context")[0].rstrip("\n")
        assert after[len(before) - 1].text.startswith(stable)


def test_the_log_keeps_the_document(runner: ScriptRunner) -> None:
    kinds = (DocumentRenderer, TranscriptRenderer)
    prompts = [kind("system", "schema").render(ATTRIBUTES, entries(runner)) for kind in kinds]
    assert prompts[0].document == prompts[1].document


def read(prompt: Prompt) -> etree._Element:
    asked = tuple(AskedTurn(turn.role, turn.text) for turn in turns(prompt))  # type: ignore[arg-type]
    root, malformed = document(Request("infer_xml", turns=asked))
    assert malformed == ""
    return root


def shape(root: etree._Element) -> Sequence[tuple[str, ...]]:
    return sorted(
        (
            str(child.tag),
            str(sorted((str(name), str(value)) for name, value in child.attrib.items())),
            (child.text or "").strip(),
            (child.findtext("stdout") or "").strip(),
            (child.findtext("error") or "") + (child.findtext("content") or ""),
        )
        for child in root
        if child.tag != "turn"
    )


@pytest.mark.spec("17")
def test_a_scripted_policy_sees_the_same_in_both(runner: ScriptRunner) -> None:
    found = read(TranscriptRenderer("system", "schema").render(ATTRIBUTES, entries(runner)))
    wanted = etree.fromstring(DocumentRenderer("system", "schema").render(ATTRIBUTES, entries(runner)).document)
    assert dict(found.attrib) == dict(wanted.attrib)
    assert shape(found) == shape(wanted)


def test_examples(tmp_path: Path, runner: ScriptRunner) -> None:
    file = tmp_path / "examples.xml"
    assert load_examples(file) == []
    file.write_text(
        "<examples><turn role='user'>hello</turn><turn role='assistant'><![CDATA[<stop/>]]></turn></examples>"
    )
    renderer = choose_renderer("system", "schema", tmp_path, "transcript")
    made = turns(renderer.render(ATTRIBUTES, entries(runner)))
    assert made[:3] == [Turn("user", "hello"), Turn("assistant", "<stop/>"), Turn("user", BEGIN)]
    assert isinstance(choose_renderer("system", "schema", tmp_path), DocumentRenderer), "the default"


@pytest.mark.bad_input
@pytest.mark.parametrize("text", ["<examples>", "<examples><turn role='assistant'>x</turn></examples>", "\x00"])
def test_bad_input_examples(tmp_path: Path, text: str) -> None:
    (tmp_path / "examples.xml").write_text(text)
    with pytest.raises(StartError) as raised:
        load_examples(tmp_path / "examples.xml")
    print(raised.value)


def test_the_agent_with_it(agent, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from tests.instance.conftest import ROOT, copy_of_agent

    code = copy_of_agent(tmp_path / "code", RENDERER='"transcript"')
    agent._env["PYTHONPATH"] = os.pathsep.join((str(code), str(ROOT)))
    agent.start(["<read_stdin/>", "<single>echo $((6*7))</single>", "<repeat>cat x</repeat>", "junk", "<stop/>"])
    assert agent.finish(b"compute")[0] == 0
    last = agent.requests()[-1]
    assert "<context><![CDATA[" not in last and last.count('<turn role="assistant">') == 4
    assert "<![CDATA[junk]]>" in last and "42" in last and "It runs as 0000003." in last
