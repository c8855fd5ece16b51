"""The sample home is what the other tests here stand on: it must be whole, honest, and the same every time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.candidates import prepare
from orchestrator.cli.status import look
from orchestrator.config import load_settings
from orchestrator.generations import Ledger
from orchestrator.journal import Journal
from orchestrator.repository import Repository
from tests.watch import sample as samples
from tests.watch.sample import Sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    with samples.build(tmp_path_factory.mktemp("sample")) as built:
        yield built


def test_what_is_shown_was_really_judged(sample: Sample) -> None:
    query = "SELECT arm, verdict FROM verdict WHERE campaign = ?"
    verdicts = {row["arm"]: row["verdict"] for row in sample.connection.execute(query, (sample.done,))}
    assert verdicts == {"show-more": "better", "worse": "worse", "cheater": "disqualified"}
    generations = Ledger(sample.connection).generations()
    assert [(one.candidate, one.state) for one in generations] == [
        ("first", "good"),
        ("show-more", "good"),
        ("trim-logs", "bad"),
    ]
    head = Repository(sample.home).head()
    assert head == generations[1].commit
    settings = load_settings(sample.home.checkout)
    assert prepare(Repository(sample.home), settings, "careful-reader", head).judged


def test_everything_that_runs_has_a_journal_that_verifies(sample: Sample) -> None:
    with sample.clock():
        found = look(sample.home)
    assert [test["id"] for test in found["tests"]] == sorted(
        sample.running, key=[t["id"] for t in found["tests"]].index
    )
    assert found["main"]["id"] == sample.main
    assert len(found["tests"]) == sample.size.instances - 1
    assert found["orphans"] == []
    for name in (sample.main, *sample.running):
        assert Journal.open(sample.store, name).verify().problem is None
    assert sample.journal(sample.long).entries == sample.size.long + 1


def test_it_is_the_same_every_time(sample: Sample, tmp_path: Path) -> None:
    with samples.build(tmp_path) as again:
        here, there = (list(_rows(one)) for one in (sample, again))
    assert here == there


def _rows(sample: Sample) -> Iterator[tuple[object, ...]]:
    with closing(sqlite3.connect(sample.home.database)) as connection:
        for table, columns in (
            ("generation", "*"),
            ("event", "*"),
            ("verdict", "*"),
            ("trial", "id, arm, task, outcome, reward, started, finished"),
            ("running", "id, label, iterations, tokens, started, cpu, paused"),
            ("journal", "id, entries, head"),
        ):
            yield from connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1")
