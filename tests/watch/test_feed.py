"""The overview: what runs and in which state, read without a write and without a lock."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import database, locks
from orchestrator.errors import ConfigError
from orchestrator.home import Home
from orchestrator.supervisor_lock import supervisor_lock
from orchestrator.watch import reading
from orchestrator.watch.feed import Feed
from tests.watch.reading_kit import make_home, run_row, write_journal


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "repo")


@pytest.fixture
def feed(home: Home) -> Iterator[Feed]:
    with Feed(home) as made:
        yield made


def state(feed: Feed, id: str) -> str:
    found = feed.poll().instance(id)
    assert found is not None
    return found.state


def test_looking_creates_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / ".sia", tmp_path)
    with Feed(home) as feed:
        snapshot = feed.poll()
    assert (snapshot.instances, snapshot.campaigns, snapshot.events, snapshot.problem) == ((), (), (), None)
    assert not home.root.exists()


def test_a_database_that_comes_later_is_found(tmp_path: Path) -> None:
    with Feed(Home(tmp_path / ".sia", tmp_path)) as feed:
        assert feed.poll().ledger is None
        make_home(tmp_path)
        ledger = feed.poll().ledger
    assert ledger is not None and ledger.generation == 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "running"),
        ({"iterations": 0, "state": "starting"}, "starting"),
        ({"paused": 5.0}, "paused"),
        ({"state": "verifying"}, "verifying"),
        ({"state": "boot 2"}, "boot 2"),
        ({"supervisor_started": 12.0}, "orphan"),  # the process id is in use again, by another process
        ({"updated": 5.0}, "stale"),
    ],
)
def test_states(home: Home, feed: Feed, values: dict[str, object], expected: str) -> None:
    run_row(home, "t1", **values)
    assert state(feed, "t1") == expected


def test_an_instance_that_completes_nothing_is_quiet_and_main_waits(home: Home, feed: Feed) -> None:
    """The journal tells since when, also to somebody who has just come."""
    write_journal(home, "t1", [("<context/>", "<stop/>")], seal=False)  # ended a minute ago
    run_row(home, "t1")
    run_row(home, "main-1", kind="main", journal="t1", last_action="read_stdin")
    assert state(feed, "t1") == "quiet"
    assert state(feed, "main-1") == "waiting"
    quiet = feed.poll().instances[0].quiet
    assert quiet is not None and 59 < quiet < 70
    run_row(home, "t1", iterations=4)
    assert state(feed, "t1") == "running"


def test_one_row_that_is_written_shows_that_the_owner_lives(home: Home, feed: Feed) -> None:
    run_row(home, "t1", updated=time.time() - 100)
    run_row(home, "t2")
    assert state(feed, "t1") == "running"


def test_rates_come_from_what_the_owner_wrote_last(home: Home, feed: Feed) -> None:
    now = time.time()
    run_row(home, "t1", cpu=10.0, tokens=1000, updated=now - 4)
    first = feed.poll().instances[0]
    assert first.cpu_percent == pytest.approx(100 * 10 / 20, rel=0.1)  # nothing better is known yet: since its start
    run_row(home, "t1", cpu=11.0, tokens=1800, updated=now - 2)
    feed.poll()
    feed.poll()  # without news nothing changes
    second = feed.poll().instances[0]
    assert second.cpu_percent == pytest.approx(50.0)
    assert second.token_history == pytest.approx((400.0,))


def test_pauses_do_not_count(home: Home, feed: Feed) -> None:
    now = time.time()
    run_row(home, "t1", started=now - 100, paused=now - 30, paused_seconds=20.0, limit_seconds=200.0)
    found = feed.poll().instances[0]
    assert found.elapsed == pytest.approx(50, abs=1)
    assert found.used == pytest.approx(0.25, abs=0.01)


def test_the_time_of_an_orphan_has_ended(home: Home, feed: Feed) -> None:
    now = time.time()
    run_row(home, "t1", started=now - 1000, updated=now - 900, supervisor_started=12.0)
    assert feed.poll().instances[0].elapsed == pytest.approx(100, abs=1)


def test_unknown_amounts_stay_unknown(home: Home, feed: Feed) -> None:
    run_row(home, "t1", cost=None)
    found = feed.poll().instances[0]
    assert (found.cost, found.cpu_percent, found.memory_mb, found.disk_mb, found.limit) == (None,) * 5


def test_events_are_read_once(home: Home, feed: Feed) -> None:
    before = feed.poll()
    with closing(database.connect(home.database)) as connection:
        connection.execute("INSERT INTO event (time, kind, subject, text) VALUES (1, 'trial', 'x', 'happened')")
    after = feed.poll()
    assert [one.text for one in after.events[len(before.events) :]] == ["happened"]
    assert after.events[0] is before.events[0]
    assert after.serial > before.serial
    assert feed.poll().serial == after.serial


def test_it_can_not_write(home: Home) -> None:
    connection = database.look(home.database)
    assert connection is not None
    with closing(connection), pytest.raises(sqlite3.OperationalError):
        connection.execute("DELETE FROM event")


def test_it_waits_for_no_writer_and_blocks_none(home: Home, feed: Feed) -> None:
    run_row(home, "t1")
    with closing(database.connect(home.database)) as connection, database.transaction(connection):
        connection.execute("UPDATE running SET tokens = 7")
        begun = time.monotonic()
        assert feed.poll().instances[0].tokens == 100
        assert time.monotonic() - begun < 5  # a writer's lock is waited for 30 s
    assert feed.poll().instances[0].tokens == 7
    with closing(database.connect(home.database)) as connection:  # nothing of the feed stays open: all of it moves over
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


@pytest.mark.bad_input
def test_bad_input_watch_of_a_damaged_database(home: Home, feed: Feed) -> None:
    """It is said, the last that was read stays, and it is tried again."""
    run_row(home, "t1")
    assert feed.poll().instances
    good = home.root / "good.db"
    with closing(database.connect(home.database)) as connection:
        connection.execute("VACUUM INTO ?", (str(good),))
    for path in home.root.glob("sia.db*"):
        path.unlink()
    home.database.write_bytes(b"this is no database at all" * 1000)
    broken = feed.poll()
    assert broken.problem is not None and broken.instances
    print(broken.problem)
    home.database.unlink()
    shutil.copy(good, home.database)
    mended = feed.poll()
    assert mended.problem is None
    assert [one.id for one in mended.instances] == ["t1"]


@pytest.mark.bad_input
def test_bad_input_watch_of_a_newer_database(home: Home, feed: Feed) -> None:
    with closing(database.connect(home.database)) as connection:
        connection.execute("PRAGMA user_version=999")
    with pytest.raises(ConfigError, match="version 999") as raised:
        feed.poll()
    print(raised.value.render())


# -- owners ---------------------------------------------------------------------------------------------------------


def test_an_owner_is_found_without_touching_its_lock(home: Home, feed: Feed) -> None:
    path = home.run / "campaign-c1.lock"
    assert reading.owner(path) is None
    with locks.hold(path, "it runs", "wait"):
        assert reading.owner(path) == os.getpid()
    assert reading.owner(path) is None
    assert feed.poll().supervisor is None
    with supervisor_lock(home, "supervise"), Feed(home) as other:
        found = other.poll().supervisor
        assert found is not None and (found.pid, found.command) == (os.getpid(), "supervise")
    with Feed(home) as other:
        assert other.poll().supervisor is None


def test_a_process_id_that_is_used_again_is_no_owner(home: Home) -> None:
    path = home.run / "campaign-c1.lock"
    path.write_text(f"{os.getpid()}\n", encoding="ascii")
    assert reading.owner(path) == os.getpid()
    os.utime(path, (5, 5))  # written long before this process was started
    assert reading.owner(path) is None
    path.write_text("99999999\n", encoding="ascii")
    assert reading.owner(path) is None


def test_a_campaign_without_its_process_has_died(home: Home, feed: Feed) -> None:
    with closing(database.connect(home.database)) as connection:
        connection.execute(
            "INSERT INTO campaign (id, created, file, spec, baseline, state)"
            " VALUES ('c1', 1, 'f', '{}', 'b', 'running')"
        )
        connection.execute(
            "INSERT INTO trial (id, campaign, arm, task, repeat, position, state)"
            " VALUES ('c1t1', 'c1', 'baseline', 't', 1, 0, 'running')"
        )
    (line,) = feed.poll().campaigns
    assert (line.state, line.trials, line.running) == ("died", 1, 0)
    with locks.hold(home.run / "campaign-c1.lock", "it runs", "wait"), Feed(home) as other:
        (line,) = other.poll().campaigns
        assert (line.state, line.running) == ("running", 1)
