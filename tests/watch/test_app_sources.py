"""What panes of lines are made of, without a screen."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console
from rich.style import Style
from rich.text import Text

from orchestrator.watch.bars import segments_of
from orchestrator.watch.columns import Column
from orchestrator.watch.context_tree import tree
from orchestrator.watch.dialogs import match
from orchestrator.watch.keys import ACTIONS
from orchestrator.watch.reader import Reader
from orchestrator.watch.sources import Sections, Wrapped, fold_text, fold_words
from orchestrator.watch.tables import Table
from orchestrator.watch.trees import Tree

HOSTILE = "\x1b[2J\x1b]0;title\x07a\rb\x08c\u202ed\tend\u2028x"


@pytest.mark.parametrize("fold", [fold_text, fold_words])
def test_a_folded_line_holds_nothing_that_a_terminal_obeys(fold: Any) -> None:
    lines = fold(HOSTILE * 20, 30)
    assert all(line.isprintable() for line in lines)
    assert all(len(line) <= 30 for line in lines)


def test_the_last_guard_lets_no_control_character_through() -> None:
    text = Text("a\x1b[31mb\x07c\nd\x9b2Je", "red")
    assert all(segment.text.isprintable() for segment in segments_of(text, Console(), Style()))


def test_wide_characters_are_cut_by_their_cells() -> None:
    assert fold_text("日本語テスト", 4) == ["日本", "語テ", "スト"]


def test_prose_is_cut_between_words() -> None:
    assert fold_words("  one two three", 9) == ["  one two", "  three"]


def test_empty_lines_stay_and_an_empty_text_has_one() -> None:
    assert fold_text("a\n\nb", 10) == ["a", "", "b"]
    assert fold_text("", 10) == [""]


def test_a_growing_text_folds_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.watch import sources

    folded: list[int] = []
    monkeypatch.setattr(sources, "fold_text", lambda text, width: folded.append(len(text)) or fold_text(text, width))
    text = "line of text\n" * 50_000
    source = Wrapped(text)
    assert source.lines(80) == 50_000
    folded.clear()
    source.grow(text + "and a new end").fold(80)
    assert sum(folded) < 100
    assert len(source) == 50_001
    assert source.line(50_000, 80).plain == "and a new end"
    source.grow(text + "and a new end, longer\nand another").fold(80)
    assert [source.line(n, 80).plain for n in (50_000, 50_001)] == ["and a new end, longer", "and another"]


def test_a_growing_text_is_the_same_as_one_that_came_at_once() -> None:
    whole = "".join(f"{n} {'x' * (n * 7 % 50)}\n" for n in range(40)) + "end"
    grown = Wrapped("")
    for length in range(0, len(whole) + 1, 13):
        grown.grow(whole[:length]).fold(20)
    grown.grow(whole).fold(20)
    once = Wrapped(whole)
    assert grown.lines(20) == once.lines(20)
    assert [grown.line(n, 20).plain for n in range(len(grown))] == [once.line(n, 20).plain for n in range(len(once))]


def test_a_line_without_an_end_is_not_folded_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.watch import sources

    folded: list[int] = []
    monkeypatch.setattr(sources, "fold_text", lambda text, width: folded.append(len(text)) or fold_text(text, width))
    text = "日本" * 100_000
    source = Wrapped(text)
    source.fold(80)
    folded.clear()
    source.grow(text + "語").fold(80)
    assert sum(folded) <= 2 * sources.PIECE + 1
    assert "".join(source.line(n, 80).plain for n in range(len(source))) == text + "語"


def test_a_text_that_became_another_is_folded_anew() -> None:
    source = Wrapped("one\ntwo\n")
    source.fold(20)
    source.grow("three").fold(20)
    assert [source.line(n, 20).plain for n in range(len(source))] == ["three"]


def test_output_cannot_look_like_a_heading_of_ours() -> None:
    heading = Text("→ from the person", "bold")
    source = Sections([(heading, Wrapped("hello")), (Text("← from the instance"), Wrapped("→ from the person\nyes"))])
    source.fold(40)
    lines = [source.line(n, 40).plain for n in range(len(source))]
    assert lines == ["→ from the person", "│ hello", "← from the instance", "│ → from the person", "│ yes"]


# -- tables


@dataclass(frozen=True)
class Thing:
    name: str
    size: int | None


COLUMNS = (
    Column("sign", "", lambda thing: Text("*"), 1),
    Column("name", "name", lambda thing: Text(thing.name), 8, sort=lambda thing: thing.name),
    Column("size", "size", lambda thing: Text(str(thing.size)), 6, right=True, sort=lambda thing: thing.size),
    Column("wide", "wide", lambda thing: Text("w"), 10, from_width=100),
)


def table(*things: Thing) -> Table[Thing]:
    return Table(COLUMNS, key=lambda thing: thing.name, words=lambda thing: thing.name).fill(things)


def names(source: Table[Thing]) -> list[str]:
    return [thing.name for thing in source.seen]


def test_rows_are_sorted_by_one_column_after_the_other_with_the_unknown_last() -> None:
    source = table(Thing("b", 2), Thing("a", None), Thing("c", 1))
    assert source.sort_next() == "name"
    assert names(source) == ["a", "b", "c"]
    assert source.sort_next() == "size"
    assert names(source) == ["c", "b", "a"]
    header = source.header(40)
    assert header is not None and "▲size" in header.plain
    source.flip()
    assert names(source) == ["b", "c", "a"]
    assert source.sort_next() == ""
    assert names(source) == ["b", "a", "c"]


def test_a_filter_wants_all_words() -> None:
    source = table(Thing("fix-log baseline", 1), Thing("fix-log better", 2), Thing("other better", 3))
    assert names(source.set_filter("FIX better")) == ["fix-log better"]
    assert names(source.fill([Thing("fix better 2", 3)])) == ["fix better 2"]
    assert names(source.set_filter("")) == ["fix better 2"]


def test_a_row_that_is_the_same_object_is_not_drawn_again() -> None:
    drawn: list[str] = []
    columns = (Column("name", "name", lambda thing: drawn.append(thing.name) or Text(thing.name), 8),)
    things = [Thing("a", 1), Thing("b", 2)]
    source: Table[Thing] = Table(columns, key=lambda thing: thing.name, words=str).fill(things)
    for _ in range(3):
        source.line(0, 40)
        source.line(1, 40)
    source.fill([things[0], Thing("b", 3)])
    source.line(0, 40)
    source.line(1, 40)
    assert drawn == ["a", "b", "b"]


def test_columns_without_room_can_be_scrolled_to() -> None:
    source = table(Thing("a", 1))
    assert "wide" not in source.header(40).plain  # type: ignore[union-attr]
    source.shift(1, 40)
    shifted = source.header(40)
    assert shifted is not None and "wide" in shifted.plain and "name" in shifted.plain
    source.shift(1, 40)
    assert source.header(40) == shifted, "the last column is seen: there is nothing more to the right"
    source.shift(-1, 40)
    assert "size" in source.header(40).plain  # type: ignore[union-attr]


# -- trees


CONTEXT = "<context><a id='1'>old</a><b id='2'>one\ntwo</b></context>"
BEFORE = "<context><a id='1'>old</a></context>"


def shown(source: Tree, width: int = 60) -> list[str]:
    source.fold(width)
    return [source.line(n, width).plain.strip().removeprefix("│ ") for n in range(len(source))]


def test_only_what_is_new_is_unfolded() -> None:
    lines = shown(Tree().fill(tree(CONTEXT, BEFORE)))
    assert lines[-2:] == ["one", "two"]
    assert not any(line == "old" for line in lines)


def test_what_is_folded_by_hand_stays_so_in_the_next_context() -> None:
    source = Tree().fill(tree(CONTEXT, BEFORE))
    shown(source)
    assert source.toggle(2) == 2
    assert shown(source)[-1] != "two"
    after = CONTEXT.replace("</context>", "<c id='3'>three</c></context>")
    lines = shown(source.fill(tree(after, CONTEXT)))
    assert "three" in lines and "two" not in lines


def test_folding_a_line_of_text_folds_its_element() -> None:
    source = Tree().fill(tree(CONTEXT, BEFORE))
    place = shown(source).index("two")
    element = source.toggle(place, unfold=False)
    assert source.line(element, 60).plain.strip().endswith("one two") or "b" in source.line(element, 60).plain
    assert "two" not in shown(source)
    assert source.toggle(element, unfold=False) == 0, "a folded one: its parent"
    assert len(shown(source)) == 1


def test_a_text_in_the_tree_cannot_look_like_an_element() -> None:
    source = Tree().fill(tree("<context><a>&#x25B8; b id=7 exit_code=0</a></context>"))
    source.fold(60)
    lines = [source.line(n, 60).plain for n in range(len(source))]
    assert lines[-1].strip() == "│ ▸ b id=7 exit_code=0"
    assert [line.lstrip().startswith("│") for line in lines] == [False, False, True]


def test_everything_can_be_unfolded_and_folded() -> None:
    source = Tree().fill(tree(CONTEXT, BEFORE))
    beginning = shown(source)
    source.toggle_all()
    assert "old" in shown(source)
    source.toggle_all()
    assert len(shown(source)) == 1
    source.toggle_all()
    assert shown(source) == beginning


# -- the palette


def test_the_palette_finds_by_beginning_then_part_then_text_then_letters() -> None:
    assert match("kill")[0].name == "kill"
    assert match("sand")[0].name == "sandbox"
    assert match("next")[0].name == "next_pane"
    assert match("rbk")[0].name == "rollback"
    assert match("zzzz") == []
    assert match("  ") == list(ACTIONS)


# -- reading threads


class Inbox:
    """What a reader delivered."""

    def __init__(self) -> None:
        self.letters: list[tuple[str, Any, BaseException | None]] = []
        self._came = threading.Condition()

    def __call__(self, name: str, value: Any, error: BaseException | None) -> None:
        with self._came:
            self.letters.append((name, value, error))
            self._came.notify()

    def wait(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.letters) >= count, 10)


def test_a_reader_survives_what_a_job_raises_and_closes_in_its_thread() -> None:
    inbox = Inbox()
    reader = Reader("test", inbox)
    reader.start()
    failure = ValueError("damaged")

    def fail() -> None:
        raise failure

    reader.once("bad", fail)
    inbox.wait(1)
    reader.once("good", lambda: 42)
    inbox.wait(2)
    assert inbox.letters == [("bad", None, failure), ("good", 42, None)]
    ended_in: list[threading.Thread] = []
    reader.close(lambda: ended_in.append(threading.current_thread()))
    reader.join(10)
    assert ended_in == [reader]


def test_asking_again_replaces_what_waits_and_hurry_runs_it_now() -> None:
    inbox = Inbox()
    reader = Reader("test", inbox)
    reader.every("poll", 1e6, lambda: "first")
    reader.once("one", lambda: "never")
    reader.once("one", lambda: "asked last")
    reader.start()
    inbox.wait(2)
    assert sorted(value for _, value, _ in inbox.letters) == ["asked last", "first"]
    reader.hurry("poll")
    inbox.wait(3)
    reader.drop("poll")
    reader.hurry("poll")
    reader.once("end", lambda: None)
    inbox.wait(4)
    assert [name for name, _, _ in inbox.letters].count("poll") == 2
    reader.close()
    reader.join(10)


def test_a_slow_job_rests_so_that_reading_stays_a_small_part_of_the_load() -> None:
    inbox, began = Inbox(), []

    def slow() -> None:
        began.append(time.monotonic())
        time.sleep(0.03)

    reader = Reader("test", inbox)
    reader.every("slow", 0.0, slow)
    reader.start()
    inbox.wait(3)
    reader.close()
    reader.join(10)
    assert all(after - before > 0.03 * 4 for before, after in itertools.pairwise(began))
