"""Room for the answer, when the model is told that there is none, and what the logs keep of what is shortened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lxml import etree

from instance.entries import ParseErrorEntry, RepeatEntry
from instance.renderer import Prompt
from instance.scripts import Script, ScriptResult
from orchestrator.log_comparison import LogComparison, compare_answers
from orchestrator.own_logs import OwnLogs
from tests.instance.agent_kit import MOMENT, Answer, Inside


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Inside]]:
    made: list[Inside] = []

    def begin(limit: int, answer: Answer = lambda _: "<reasoning>on</reasoning>") -> Inside:
        made.append(Inside(tmp_path, limit, answer))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def size(prompt: Prompt) -> int:
    return len(prompt.system) + len(prompt.document)


def notices(context: str) -> list[str]:
    return [str(entry.get("id")) for entry in etree.fromstring(context).iterfind("parse_error")]


@pytest.mark.parametrize(("limit", "reserve"), [(5_000, 500), (20_000, 1024), (200_000, 1024)])
@pytest.mark.parametrize("free", [8, -5, 5, 2000])
def test_room_is_kept_for_the_answer(start: Callable[..., Inside], limit: int, reserve: int, free: int) -> None:
    made = start(limit)
    made.agent._told.add("size")
    entry = made.add_output("o")
    room = free if free == 8 else reserve + free
    entry.finish(ScriptResult("o" * (limit - size(made.agent._compile_context()) - room), "", 0))
    prompt = made.agent._compile_context()
    assert bool(entry.shed) == (room < reserve) == bool(notices(prompt.document))
    assert size(prompt) <= limit - reserve
    percent = etree.fromstring(prompt.document).get("context")
    assert percent == f"{100 * size(prompt) / limit:.0f}", "of the engine's limit"


def test_less_room_is_better_than_none(start: Callable[..., Inside]) -> None:
    probe = start(100_000)
    probe.add_thought("short")
    limit = int(size(probe.agent._compile_context()) * 1.06)
    made = start(limit)
    made.agent._told |= {"size", "shed"}
    made.add_thought("short")
    assert 'context="9' in made.iterate()[0], "nothing of it can be shortened, and it fits"


def deletes_notices(context: str) -> str:
    told = notices(context)
    return f'<delete id="{told[-1]}"/>' if told else "<reasoning>on</reasoning>"


def test_a_notice_that_is_deleted_does_not_come_back(start: Callable[..., Inside]) -> None:
    made = start(20_000, deletes_notices)
    outputs = [made.add_output("o" * 2000) for _ in range(20)]
    told = {id for context in made.iterate(8) for id in notices(context)}
    assert len(told) == 2, "that it is nearly full, and that texts are shortened: each once"
    assert made.memory.get_entries_by_type(ParseErrorEntry) == []
    for entry in outputs[:15]:
        made.memory.remove_entry(entry.id)
    made.agent._show_all()
    made.iterate()
    for _ in range(5):
        made.add_output("o" * 2000)
    assert not told & {id for context in made.iterate(3)[-3:] for id in notices(context)}
    assert made.agent._told == {"size", "shed"}, "after there was room, it is told anew"


def test_nor_where_the_engine_refuses_what_it_counted(start: Callable[..., Inside]) -> None:
    def refuses(context: str) -> str:
        return "\x15too_long 5" if "o" * 900 in context else deletes_notices(context)

    made = start(100_000, refuses)
    for _ in range(10):
        made.add_output("o" * 1000)
    assert len({id for context in made.iterate(5) for id in notices(context)}) == 1


def whole(directory: Path) -> dict[str, str]:
    """What lies beside the logs: names, and the outputs in them."""
    files = (directory / "iterations" / "whole").iterdir()
    return {file.name: etree.fromstring(file.read_text()).findtext("stdout", "") for file in sorted(files)}


def lines(number: int) -> str:
    return "".join(f"line {number + step}\n" for step in range(3000))


def test_what_is_shortened_before_a_log_had_it_lies_beside_the_log(
    start: Callable[..., Inside], tmp_path: Path
) -> None:
    made = start(20_000)
    early = made.add_output("early " * 500)
    made.iterate()
    long = made.add_output(lines(0))
    contexts = made.iterate(3)
    assert early.shed and long.shed and "\nline 1500\n" not in "".join(contexts)
    assert whole(tmp_path) == {f"00000002-{long.id}": lines(0)}, "once; the log of the first iteration has the other"
    for number, context in enumerate(contexts, 1):
        log = (tmp_path / "iterations" / f"{number:08d}.xml").read_text()
        assert f"<context>\n{context}\n</context>" in log, "the log holds what was sent"
    assert compare_answers(made.engine.answers, OwnLogs(tmp_path)) == LogComparison(None, ())


def test_each_output_of_a_repeat_that_stays_shortened(start: Callable[..., Inside], tmp_path: Path) -> None:
    made = start(20_000)
    script = "echo x >>count; n=$(wc -l <count); for i in $(seq 4000); do echo $n-$i; done"
    repeat = RepeatEntry(Script(script, 30, 60_000), made.runner, made.ids.next(), MOMENT)
    made.memory.add_entry(repeat)
    made.memory.update()
    made.iterate(2)
    repeat.held = True  # its output stays what it is
    made.iterate(2)
    outputs = whole(tmp_path)
    assert list(outputs) == [f"{number:08d}-{repeat.id}" for number in (1, 2, 3)]
    for number, text in enumerate(outputs.values(), 1):
        assert text == "".join(f"{number}-{line}\n" for line in range(1, 4001))


def test_what_could_not_be_written_is_written_later(start: Callable[..., Inside], tmp_path: Path) -> None:
    made = start(20_000)
    (tmp_path / "iterations" / "whole").write_text("in the way")
    long = made.add_output(lines(0))
    made.iterate()
    (tmp_path / "iterations" / "whole").unlink()
    assert "The iteration log could not be written" in made.iterate()[-1]
    assert whole(tmp_path) == {f"00000002-{long.id}": lines(0)}


def test_a_request_to_restart_that_came_too_late_is_dropped(start: Callable[..., Inside], tmp_path: Path) -> None:
    """Scripts are not cut off for it. Whoever asked has given up meanwhile, and would take 42 for a crash."""
    script = "touch began; until [ -e asked ]; do sleep 0.02; done"
    answers = iter([f"<single>{script}</single>", "<reasoning>goes on</reasoning>", "<stop/>"])
    made = start(20_000, lambda _: next(answers))

    def ask() -> None:
        end = time.monotonic() + 30
        while not (tmp_path / "began").exists() and time.monotonic() < end:
            time.sleep(0.01)
        made.interrupt.ask("restart")
        made.interrupt.asked_at -= 59
        (tmp_path / "asked").touch()

    asking = threading.Thread(target=ask)
    asking.start()
    assert made.agent.run() == 0
    asking.join()
    assert len(made.engine.contexts) == 3 and "goes on" in made.engine.contexts[2]
