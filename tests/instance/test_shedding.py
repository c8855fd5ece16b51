"""A context near and over the limit of the engine: the percent, the warning, what is shortened in which order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lxml import etree

from instance.clock import Clock, SequentialIds
from instance.entries import LEFT_OUT, Entry, ParseErrorEntry, ReasoningEntry, SingleEntry
from instance.memory import WorkingMemory
from instance.scripts import Script, ScriptResult, ScriptRunner
from instance.shedding import shed, show_all, shown
from instance.state import Counters, StateStore

LIMIT = 32768  # tokens of the tests' engine, which counts four characters of a request as one


def parts(context: str) -> list[etree._Element]:
    return list(etree.fromstring(context.encode()))


def percent(context: str) -> int:
    return int(etree.fromstring(context.encode()).get("context", ""))


def size(request: str) -> float:
    """Percent of the limit that a request takes, as the engine counts it."""
    return 100 * (len(request.encode()) // 4) / LIMIT


def test_the_percent_is_that_of_the_prompt_it_stands_in(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start([*[f"<single limit='9000'>seq {number * 1000}</single>" for number in range(1, 7)], "<stop/>"])
    assert agent.finish()[0] == 0
    for request, context in zip(agent.requests(), agent.contexts(), strict=True):
        counted = request.replace("infer_xml>", "token_count>")
        assert percent(context) == round(size(counted)), "counted by the engine, of exactly this prompt"


def test_a_warning_at_80_percent_once_until_there_is_room(agent) -> None:  # type: ignore[no-untyped-def]
    big = "<single limit='60000'>seq 11000</single>"  # about 50,000 characters: 38 percent
    answers = [big, big, "<reasoning>write it down</reasoning>", '<delete id="0000001"/>', big, "<stop/>"]
    agent.start(answers)
    assert agent.finish()[0] == 0
    warned = [[part for part in parts(context) if part.tag == "parse_error"] for context in agent.contexts()]
    assert [len(found) for found in warned] == [0, 0, 1, 1, 1, 2]
    assert "80 percent" in (warned[2][0].findtext("error") or "") and "0000001 (" in warned[2][0].findtext("error")
    assert percent(agent.contexts()[2]) >= 80


def test_at_100_percent_the_oldest_outputs_go_first(agent) -> None:  # type: ignore[no-untyped-def]
    big = "<single limit='60000'>seq 11000</single>"
    agent.start([*[big] * 5, "<reasoning>kept</reasoning>", "<stop/>"])
    assert agent.finish()[0] == 0
    for request, context in zip(agent.requests(), agent.contexts(), strict=True):
        assert size(request) <= 97 and percent(context) <= 97, "1024 tokens are left for the answer"
    last = parts(agent.contexts()[-1])
    singles = [part for part in last if part.tag == "single"]
    lengths = [len(part.findtext("stdout") or "") for part in singles]
    assert len(singles) == 5 and lengths[0] < 600 < 50_000 < lengths[-1], "all ids, the newest output whole"
    assert [part.get("shed") for part in singles][::4] == ["true", None]
    told = [part.findtext("error") or "" for part in last if part.tag == "parse_error"]
    assert any("no room for an answer" in error for error in told)
    logs = [path.read_text() for path in sorted((agent.data / "iterations").glob("*.xml"))]
    assert "\n10999\n" in logs[1] and "\n10999\n" in logs[2], "the logs have what was shown, in full"
    state = (agent.data / "state" / "agent.xml").read_text()
    assert state.count("\n10999\n") == 5, "nothing is lost from the state"


def test_a_single_output_that_is_too_long(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start(["<single limit='9000000'>seq 1400000</single>", "<stop/>"])
    assert agent.finish(seconds=60)[0] == 0
    assert size(agent.requests()[1]) <= 97 and "characters left out" in agent.contexts()[1]
    (whole,) = (agent.data / "iterations" / "whole").iterdir()
    assert whole.name == "00000002-0000001", "what no log shows in full lies beside them"
    kept = (whole.read_text().rpartition("<stdout>")[2]).partition("characters left out")
    assert len(kept[0]) > 4_400_000 and kept[2].count("\n") > 500_000
    state = etree.parse(agent.data / "state" / "agent.xml", etree.XMLParser(huge_tree=True)).getroot()
    assert state.findtext("memory/single/stdout") in whole.read_text()


def test_more_than_a_request_can_hold(agent) -> None:  # type: ignore[no-untyped-def]
    """Five million characters of three bytes each would be refused by the broker, even if an engine could take them."""
    script = "<single limit='9000000'>head -c 5000000 /dev/zero | sed 's/\\x00/語/g'</single>"
    agent.start([script, "<stop/>"])
    assert agent.finish(seconds=60)[0] == 0
    assert len(agent.requests()[1].encode()) < 16_000_000 and "characters left out" in agent.contexts()[1]


def test_an_engine_that_refuses_what_it_counted(agent) -> None:  # type: ignore[no-untyped-def]
    refused = {"error": "too_long 9000"}
    agent.start(["<single>seq 4000</single>", refused, "<reasoning>shorter</reasoning>", '<delete id="0000002"/>'])
    agent.asked(5)
    contexts = agent.contexts()
    agent.process.terminate()
    agent.finish()
    assert len(contexts[2]) < len(contexts[1]) / 2
    assert len(contexts[3]) < len(contexts[1]) / 2, "it stays short: the engine would refuse it again"
    assert len(contexts[4]) > len(contexts[1]), "after a delete it is shown in full again, as far as that fits"


def test_an_engine_that_accepts_nothing_ends_it_in_order(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start([{"error": "too_long 5"}])
    assert agent.finish()[0] == 75
    assert "too_long" in agent.stderr and "Traceback" not in agent.stderr


def entries(runner: ScriptRunner, count: int) -> list[Entry]:
    ids, now = SequentialIds(), Clock().now()
    made: list[Entry] = []
    for number in range(count):
        if number % 3 == 0:
            made.append(ReasoningEntry("r" * 1000, ids.next(), now))
        elif number % 3 == 1:
            made.append(SingleEntry(Script("s" * 900), runner, ids.next(), now, ScriptResult("o" * 5000, "e" * 200, 0)))
        else:
            made.append(ParseErrorEntry("c" * 3000, "wrong", ids.next(), now))
    return made


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.97, 5.0])
def test_the_order(runner: ScriptRunner, share: float) -> None:
    made = entries(runner, 30)
    before = sum(len(entry.context_xml()) for entry in made)
    assert shed(made, share * before)
    after = sum(len(entry.context_xml()) for entry in shown(made))
    assert share > 1 or before - after >= share * before
    outputs = [entry.shed for entry in made if not isinstance(entry, ReasoningEntry)]
    assert outputs == sorted(outputs, reverse=True), "older entries are shortened at least as much"
    if share <= 0.5:
        assert {entry.shed for entry in made if isinstance(entry, ReasoningEntry)} == {0}
    if share < 1:
        assert len(shown(made)) == 30, "ids stay"
    else:
        assert shown(made) == made[-1:] and made[0].shed == LEFT_OUT
        assert not shed(made, 1)
    show_all(made)
    assert sum(len(entry.context_xml()) for entry in made) == before


def test_what_is_shed_is_saved_and_whole(tmp_path: Path, runner: ScriptRunner) -> None:
    memory = WorkingMemory(runner)
    for entry in entries(runner, 9):
        memory.add_entry(entry)
    shed(memory.get_entries(), 9000)
    from instance.iobuffer import WebIOBuffer

    store = StateStore(tmp_path)
    store.save(Counters(told=("shed", "iteration log")), memory, WebIOBuffer())
    saved = store.load(runner)
    assert saved is not None and saved.counters.told == ("shed", "iteration log")
    assert [entry.context_xml() for entry in saved.entries] == [entry.context_xml() for entry in memory.get_entries()]
    assert [entry.shed for entry in saved.entries] == [entry.shed for entry in memory.get_entries()]
    show_all(saved.entries)
    assert re.search("o{5000}", "".join(entry.context_xml() for entry in saved.entries))
