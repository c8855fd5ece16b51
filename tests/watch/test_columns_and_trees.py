"""Cells are exactly as wide as their column, and a context is a tree, whatever they hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from orchestrator.untrusted import printable
from orchestrator.watch import marks
from orchestrator.watch.columns import Column, fitted, line, place
from orchestrator.watch.context_tree import MAX_NODES, Node, answered_with, plainly, readable, tree
from orchestrator.watch.texts import FOLDS, block, rows
from tests.watch.reading_kit import CONTROL
from tests.watch.sample_text import HOSTILE

COLUMNS = (
    Column("a", "a", lambda row: Text(str(row)), 5),
    Column("b", "b", lambda row: Text(str(row)), 10, flexible=True, weight=2),
    Column("c", "c", lambda row: Text(str(row)), 10, flexible=True),
    Column("d", "d", lambda row: Text(str(row)), 8, right=True, from_width=100),
)
WIDE = st.text(st.sampled_from("a日本é😀 e\u0301\n\u200d👩‍🚀❤\ufe0f🇩🇪"), max_size=40).map(printable)


# -- columns --------------------------------------------------------------------------------------------------------


@given(WIDE, st.integers(1, 30), st.booleans())
def test_a_cell_is_as_wide_as_its_column(text: str, width: int, right: bool) -> None:
    cell = fitted(Text(text, "red"), width, right=right)
    assert cell.cell_len == width
    assert "\n" not in cell.plain


def test_columns_take_what_the_terminal_has() -> None:
    for width in (40, 80, 99, 100, 200):
        placed = place(COLUMNS, width)
        assert sum(one.width for one in placed) + len(placed) - 1 == width - 2
        assert line([one.render("x" * 300) for one in placed]).cell_len <= width - 1
        assert ("d" in [one.column.key for one in placed]) == (width >= 100)
    wide = place(COLUMNS, 200)
    assert wide[1].width - 10 == pytest.approx(2 * (wide[2].width - 10), abs=2)


def test_a_narrow_terminal_loses_the_last_columns_and_never_breaks() -> None:
    assert [one.column.key for one in place(COLUMNS, 20)] == ["a", "b"]
    for width in range(1, 20):
        assert place(COLUMNS, width)[0].width >= 1


# -- amounts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (marks.count(0), "0"),
        (marks.count(999), "999"),
        (marks.count(1000), "1.0k"),
        (marks.count(99_949), "99.9k"),
        (marks.count(999_499), "999k"),
        (marks.count(999_999), "1.0M"),
        (marks.count(None), "–"),
        (marks.money(None), "?"),
        (marks.money(0.0), "$0.00"),
        (marks.money(0.00042), "$0.0004"),
        (marks.money(1.5), "$1.500"),
        (marks.money(123.456), "$123.46"),
        (marks.span(59.9), "59s"),
        (marks.span(61), "1m01"),
        (marks.span(7380), "2h03"),
        (marks.span(90_000), "1d01h"),
        (marks.span(-5), "0s"),
        (marks.rough(47), "47s"),
        (marks.rough(2404), "40m"),
        (marks.rough(7200), "2h"),
        (marks.rough(1e6), "11d"),
        (marks.megabytes(0.24), "0.2M"),
        (marks.megabytes(2048), "2.0G"),
        (marks.size(999), "999 B"),
        (marks.size(3400), "3.4 kB"),
        (marks.size(150_000), "150 kB"),
        (marks.percent(243.2), "243%"),
    ],
)
def test_amounts_keep_few_digits(shown: str, expected: str) -> None:
    assert shown == expected


def test_pictures_of_numbers() -> None:
    assert marks.bar(0.5, 8).plain == "████░░░░"
    assert marks.bar(7, 4).plain == "████"
    assert marks.sparkline([0, 50, 100], 5, 100) == "  ▁▄█"
    assert marks.sparkline([], 3) == "   "
    assert marks.interval(-0.5, 0.0, 0.5, 1.0, 9) == "··├─●─┤··"
    assert marks.interval(None, 0.5, None, 1.0, 9) == "◄───┼─●─►"
    assert marks.interval(0.25, 0.5, 1.0, 1.0, 9) == "····│├●─┤"


# -- texts ----------------------------------------------------------------------------------------------------------


@given(st.text(st.sampled_from("a日😀\t\n\x1b[\u202e\x00e\u0301"), max_size=80), st.integers(4, 40))
def test_rows_of_any_text_fit(text: str, width: int) -> None:
    for row in rows(text, width):
        assert row.cell_len <= width or row.plain.startswith("…")
        assert not CONTROL.search(row.plain)


def test_long_texts_say_what_is_left_out() -> None:
    made = list(rows("x" * 1_000_000, 80))
    assert len(made) == FOLDS + 1
    assert made[-1].plain == f"… {1_000_000 - FOLDS * 80:,} more characters on this line"
    shown = block("\n".join(str(n) for n in range(1000)), 80, 10).plain.split("\n")
    assert shown[0] == " 0" and shown[-1] == " … 990 more lines"
    shown = block("\n".join(str(n) for n in range(1000)), 80, 10, tail=True).plain.split("\n")
    assert shown[0] == " … 990 more lines" and shown[-1] == " 999"


# -- trees ----------------------------------------------------------------------------------------------------------


def nodes(node: Node) -> list[Node]:
    return [node, *(one for child in node.children for one in nodes(child))]


def test_what_is_new_is_marked() -> None:
    before = '<context time="1"><a id="1">x</a><b id="2"/></context>'
    after = '<context time="2"><a id="1">x</a><c id="3"><d>new</d></c></context>'
    made = tree(after, before)
    assert [(child.title, child.new) for child in made.children] == [("a id=1", False), ("c id=3", True)]
    assert made.children[1].children[0].new
    assert made.children[1].summary == "new"
    assert all(child.new for child in tree(after).children)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no xml at all",
        "<context><a></context>",
        '<!DOCTYPE x [<!ENTITY a "aaaa">]><context>&a;</context>',
        "\x00\x1b[2J",
        "<a>" * 300 + "</a>" * 300,
        HOSTILE,
    ],
)
def test_what_is_no_tree_is_shown_as_text(text: str) -> None:
    made = tree(text)
    assert (made.children, made.title) == ((), "text")
    assert not CONTROL.search(made.text.replace("\t", ""))
    assert "\x1b" not in readable(text)


def test_hostile_entries_are_harmless_and_bounded() -> None:
    inner = "".join(f'<e n="{n}">{n}</e>' for n in range(MAX_NODES + 500))
    made = tree(f'<context a="&#10;&#x202e;x{"y" * 5000}">{inner}</context>')
    assert len(nodes(made)) <= MAX_NODES + 2
    assert made.children[-1].title == "… 500 more"
    assert len(made.title) <= 160 and not CONTROL.search(made.title)
    deep = tree("<a>" * 60 + "text" + "</a>" * 60)
    assert len(nodes(deep)) < 30 and "text" in nodes(deep)[-1].text


def test_entries_become_readable_text() -> None:
    text = '<single id="2" exit_code="0">\nls\n<stdout><![CDATA[a\n  b]]></stdout><stderr/></single>'
    assert readable(text) == "single id=2 exit_code=0\n  ls\n  stdout\n    a\n      b"


def test_a_conversation_is_a_tree_of_turns() -> None:
    first = '<turn role="user">Begin.</turn>'
    answer = '<turn role="assistant">&lt;single&gt;ls&lt;/single&gt;</turn>'
    output = '&lt;single id="2"&gt;\n&lt;stdout&gt;a&lt;/stdout&gt;\n&lt;/single&gt;'
    then = f'{first}\n{answer}\n<turn role="user">{output}&lt;context time="1"/&gt;</turn>'
    made = tree(then, first)
    assert [(child.title, child.new) for child in made.children] == [
        ("user", False),
        ("assistant", True),
        ("user", True),
    ]
    assert made.title == "conversation of 3 turns" and made.children[0].text == "Begin."
    entry, _ = made.children[2].children
    assert (entry.title, entry.new, entry.children[0].text) == ("single id=2", True, "a")
    assert answered_with(first, then) == "single id=2\n  stdout\n    a"
    assert answered_with("<context/>", then) is None
    assert plainly(then).startswith("[user]\nBegin.\n[assistant]\n<single>ls</single>")
    assert tree('<turn role="user">\x00&bad;</turn>').title == "text"
