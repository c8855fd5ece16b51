"""Iterations of one instance: an index, lines, texts only of what is looked at, search, streams."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import database
from orchestrator.errors import UsageError
from orchestrator.exchanges import ExchangeStore
from orchestrator.home import Home
from orchestrator.journal import Journal
from orchestrator.messages import MessageLog
from orchestrator.watch.compare import Comparison, partner
from orchestrator.watch.iterations import Iterations
from tests.watch.reading_kit import append, make_home, write_journal
from tests.watch.sample_text import HOSTILE

ENTRY = '<single id="{n}" exit_code="0">\n<![CDATA[{text}]]>\n</single>'


def context(*texts: str) -> str:
    """A context with these entries."""
    entries = "\n".join(ENTRY.format(n=n, text=text) for n, text in enumerate(texts, 1))
    return f'<context\ntime="now"\n>\n{entries}\n</context>'


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "repo")


@pytest.fixture
def store(home: Home) -> Iterator[ExchangeStore]:
    with closing(ExchangeStore(home.exchanges, home.database)) as made:
        yield made


def opened(home: Home, name: str) -> closing[Iterations]:
    return closing(Iterations(home, name))


def test_only_iterations_are_counted(home: Home, store: ExchangeStore) -> None:
    journal = Journal.create(store, "c1t1", {"kind": "trial"})
    append(journal, context(), "32768", kind="limit")
    append(journal, context(), "<single>ls</single>")
    append(journal, context(), "12", kind="count")
    append(journal, context(), "", kind="refused", error="budget all 3 iterations are used")
    with opened(home, "c1t1") as its:
        assert its.count == 2
        first, second = its.lines(-5, 99)
        assert (first.n, first.entry, first.action, first.text) == (1, 2, "single", "<single>ls</single>")
        assert (second.entry, second.kind, second.error) == (4, "refused", "budget all 3 iterations are used")
        assert its.get(1).reply == "<single>ls</single>"
        assert its.position(4) == 2
        for outside in (0, 3):
            with pytest.raises(IndexError):
                its.line(outside)


def test_new_ones_are_found_while_it_runs(home: Home, store: ExchangeStore) -> None:
    journal = Journal.create(store, "c1t1", {"kind": "trial"})
    with opened(home, "c1t1") as its:
        assert (its.count, its.refresh(), its.sealed) == (0, False, False)
        append(journal, context(), "<stop/>")
        assert its.refresh() and its.count == 1 and not its.refresh()
        journal.seal()
        its.refresh()
        assert its.sealed


def test_an_ended_trial_says_what_it_got(home: Home, store: ExchangeStore) -> None:
    for name in ("c1t1", "c1t1~2"):
        Journal.create(store, name, {"kind": "trial"}).seal()
    with closing(database.connect(home.database)) as connection:
        connection.execute(
            "INSERT INTO trial (id, arm, task, repeat, position, state, outcome, detail, reward, record)"
            " VALUES ('c1t1', 'baseline', 'sum', 1, 1, 'done', 'limit', 'iterations', 0.5, ?)",
            (json.dumps({"journal": "c1t1~2"}),),
        )
    with opened(home, "c1t1~1") as earlier, opened(home, "c1t1") as newest:
        assert (earlier.result, newest.result) == ("", "limit iterations, reward 0.5")


def test_a_name_means_the_newest_attempt(home: Home, store: ExchangeStore) -> None:
    for answers in (1, 2):
        journal = Journal.create(store, "c1t1", {"kind": "trial"})
        for _ in range(answers):
            append(journal, context(), "<stop/>")
    Journal.create(store, "main-1", {"kind": "main"})
    Journal.create(store, "main-2", {"kind": "main"})
    Journal.create(store, "c1t10", {"kind": "trial"})
    for name, expected in (("c1t1", "c1t1~2"), ("c1t1~1", "c1t1"), ("main", "main-2"), ("c1t10", "c1t10")):
        with opened(home, name) as its:
            assert its.id == expected
    with opened(home, "c1t1") as its:
        assert (its.count, its.trial) == (2, "c1t1")


@pytest.mark.bad_input
def test_bad_input_watch_of_an_unknown_journal(home: Home, store: ExchangeStore, tmp_path: Path) -> None:
    Journal.create(store, "c1t1", {"kind": "trial"})
    Journal.create(store, "c1t2", {"kind": "trial"})
    for name in ("", "nope", "c1t", "main", "\x1b[2J"):
        with pytest.raises(UsageError) as raised:
            Iterations(home, name)
        assert "\x1b" not in raised.value.render()
        print(raised.value.render())
    with pytest.raises(UsageError, match="nothing has run here"):
        Iterations(Home(tmp_path / "none", tmp_path), "c1t1")


def test_what_came_of_it_is_readable(home: Home) -> None:
    output = ENTRY.format(n=2, text="total 0")
    write_journal(home, "c1t1", [(context("one"), "<single>ls</single>"), (context("one", "total 0"), "<stop/>")])
    assert "total 0" in output
    with opened(home, "c1t1") as its:
        assert its.effect(1) == "single id=2 exit_code=0\n  total 0"
        assert its.effect(2) is None


def test_hostile_answers_are_harmless_in_a_line(home: Home) -> None:
    write_journal(home, "c1t1", [(context(), f"<reasoning>{HOSTILE}"), (context(), "\x1b[31m" * 500), (context(), "")])
    with opened(home, "c1t1") as its:
        lines = its.lines(1, 3)
    assert [line.action for line in lines] == ["reasoning", "", ""]
    assert all("\x1b" not in line.text and "\n" not in line.text for line in lines)


# -- search ---------------------------------------------------------------------------------------------------------


def test_search_finds_where_something_came_up_first(home: Home) -> None:
    pairs = [
        (context(*["needle"] * (n >= 3), *(f"text {m}" for m in range(n))), f"<single>step {n}</single>")
        for n in range(6)
    ]
    write_journal(home, "c1t1", pairs)
    with opened(home, "c1t1") as its:
        assert its.search("NEEDLE", 1) == 4  # not again in all that follow
        assert its.search("needle", 4) is None
        assert its.search("needle", 6, -1) == 4
        assert its.search("step 5", 1) == 6
        assert its.search("text 2", 6, -1) == 4
        assert its.search("", 1) is None
        assert its.search("nowhere", 1, stop=lambda: True) is None


def test_search_sees_what_lies_across_two_pieces(home: Home) -> None:
    """Texts are stored in pieces of 64 kB."""
    head = len(ENTRY.partition("{text}")[0].format(n=2))
    pairs = [(context("a"), "<stop/>")]
    for place in range(-12, 3):  # where the word begins, from the edge of the first piece of the second entry
        pairs.append((context("a", "x" * (65536 - head + place) + f"needle{place + 12:02}" + "y" * 70_000), "<stop/>"))
    write_journal(home, "c1t1", pairs)
    with opened(home, "c1t1") as its:
        found = [its.search(f"needle{number:02}", 1) for number in range(15)]
    assert found == list(range(2, 17))


def test_search_in_turns_and_errors(home: Home, store: ExchangeStore) -> None:
    from dataclasses import replace

    from orchestrator.journal import Asked, Exchange
    from orchestrator.protocol import Turn

    journal = Journal.create(store, "c1t1", {"kind": "trial"})
    append(journal, context(), "", kind="refused", error="bad_request an odd request")
    asked = replace(Asked(1, "0" * 64), turns=(Turn("user", "find me"), Turn("assistant", "ok")))
    journal.append(Exchange(2, 1.0, "infer", asked, "<stop/>", 0.1))
    with opened(home, "c1t1") as its:
        assert its.search("find me", 1) == 2
        assert its.search("odd request", 2, -1) == 1


# -- streams --------------------------------------------------------------------------------------------------------


def test_streams_of_a_trial(home: Home) -> None:
    write_journal(home, "c1t1", [(context(), "<stop/>")], campaign="c1", task="t", arm="a", repeat=1)
    place = home.campaigns / "c1" / "trials" / "c1t1"
    place.mkdir(parents=True)
    (place / "stdout.txt").write_bytes(b"x" * 1_000_000 + b"\xff\x1b[2Jthe end\n")
    task = home.checkout / "tasks" / "t"
    task.mkdir(parents=True)
    (task / "instruction.md").write_text("Do it.\n", encoding="utf-8")
    with closing(database.connect(home.database)) as connection:
        connection.execute(
            "INSERT INTO campaign (id, created, file, spec, baseline, state) VALUES ('c1', 1, 'f', '{}', 'b', 'done')"
        )
        connection.execute(
            "INSERT INTO campaign_task (campaign, position, name, path, key, split)"
            " VALUES ('c1', 0, 't', ?, 'k', 'train')",
            (str(task),),
        )
        connection.execute(
            "INSERT INTO request (time, kind, subject, text, asked_by) VALUES (5, 'message', 'c1t1', 'hurry', 'me')"
        )
    with opened(home, "c1t1") as its:
        assert [(one.who, one.text, one.time) for one in its.stdin()] == [
            ("task", "Do it.\n", None),
            ("person", "hurry", 5.0),
        ]
        shown = its.stdout(1000)
        assert shown.endswith("�the end\n") and len(shown) < 1100 and "bytes before this" in shown
        assert its.stderr() == ""
        assert its.directory == place


def test_streams_of_main(home: Home) -> None:
    write_journal(home, "main-1", [(context(), "<stop/>")], kind="main", seal=False)
    MessageLog(home.main / "messages.log").append("hello")
    (home.main / "stdout.log").write_text("hi\n", encoding="utf-8")
    (home.main / "stderr").mkdir()
    (home.main / "stderr" / "main-1.txt").write_text("ready\n", encoding="utf-8")
    with opened(home, "main") as its:
        assert ([one.text for one in its.stdin()], its.stdout(), its.stderr()) == (["hello"], "hi\n", "ready\n")
        assert its.trial is None


def test_live_says_that_somebody_looks(home: Home) -> None:
    write_journal(home, "c1t1", [], seal=False)
    place = home.run / "live"
    with opened(home, "c1t1") as its:
        assert its.live() is None
        assert (place / "c1t1.wanted").stat().st_mtime == pytest.approx(time.time(), abs=5)
        os.utime(place / "c1t1.wanted", (1, 1))
        values = {"n": 4, "asked": 1.5, "context": "<context/>", "answer": "<si", "state": "answering"}
        (place / "c1t1.json").write_text(json.dumps(values), encoding="utf-8")
        live = its.live()
        assert live is not None and (live.n, live.state, live.answer) == (4, "answering", "<si")
        assert (place / "c1t1.wanted").stat().st_mtime > 2
        (place / "c1t1.json").write_text('{"n": ', encoding="utf-8")  # half written by another version
        assert its.live() is None
    write_journal(home, "c1t2", [])
    with opened(home, "c1t2") as its:
        assert its.live() is None
    assert not (place / "c1t2.wanted").exists()  # an ended one has nothing live


# -- two of them ----------------------------------------------------------------------------------------------------


def test_comparison_finds_where_two_went_apart(home: Home) -> None:
    left = [(context(), "<a/>"), (context("x"), "<b/>"), (context("x", "y"), "<c/>"), (context(), "<stop/>")]
    right = [(context(), "<a/>"), (context("z"), "<d/>"), (context(), "<stop/>")]
    write_journal(home, "l", left)
    write_journal(home, "r", right)
    with closing(Comparison(home, "l", "r")) as both:
        assert both.refresh() and not both.refresh()
        seen = [(row.left and row.left.n, row.right and row.right.n, row.same) for row in both.rows]
        assert seen == [(1, 1, True), (2, 2, False), (3, None, False), (4, 3, True)]
        assert (both.first, both.agreeing, both.cut) == (1, 2, False)
        difference = "\n".join(both.difference(1))
        assert "-<![CDATA[x]]>" in difference and "+<![CDATA[z]]>" in difference
        assert both.difference(2) == []


def test_comparison_of_the_same_and_of_nothing(home: Home) -> None:
    write_journal(home, "l", [(context(), "<a/>")])
    write_journal(home, "r", [(context(), "<a/>")])
    write_journal(home, "empty", [])
    with closing(Comparison(home, "l", "r")) as both:
        both.refresh()
        assert (both.first, len(both.rows)) == (None, 1)
    with closing(Comparison(home, "empty", "r")) as both:
        both.refresh()
        assert (both.first, both.rows[0].left) == (0, None)
    with pytest.raises(UsageError):
        Comparison(home, "l", "nope")
    assert partner(home, "l") is None
