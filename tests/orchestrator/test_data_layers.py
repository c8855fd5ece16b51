"""Levels of durable data: what a launch sees, what freezing keeps, long stacks joined, nothing needed removed."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import database
from orchestrator.data_layers import FLATTEN_ABOVE, KEEP_ASIDE, Levels, collect, flatten
from orchestrator.generations import Ledger
from orchestrator.home import Home, open_home
from orchestrator.recovery import join
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Limits, SandboxSpec

pytestmark = pytest.mark.sandbox


@pytest.fixture
def home(mode: str, tmp_path: Path) -> Home:
    (tmp_path / ".git").mkdir()
    return open_home(tmp_path)


@pytest.fixture
def host(home: Home) -> Iterator[Host]:
    with Host.detect(home.root) as found:
        yield found


@pytest.fixture
def connection(home: Home) -> Iterator[sqlite3.Connection]:
    with closing(database.connect(home.database)) as opened:
        Ledger(opened).found("a" * 40, "tree")
        yield opened


def write(home: Home, host: Host, connection: sqlite3.Connection, script: str) -> str:
    """Run a script as main would see its data; returns what it printed."""
    overlays = Levels(home).prepare(host, Ledger(connection).data())
    out = home.root / "out"
    with out.open("wb") as file:
        spec = SandboxSpec(
            command=("/bin/sh", "-c", script),
            workdir="/app",
            env={"PATH": "/usr/bin:/bin"},
            overlays=overlays,
            limits=Limits(memory_mb=None, seconds=30),
        )
        read, given = os.pipe()
        with Sandbox.start(host, spec, stdout=given, stderr=given) as sandbox:
            os.close(given)
            with open(read, "rb") as pipe:
                file.write(pipe.read())
            outcome = sandbox.wait()
    assert outcome is not None and outcome.exit_code == 0, out.read_text()
    return out.read_text()


def freeze(connection: sqlite3.Connection) -> None:
    """What a promotion does to the levels, without one: the upper joins the stack."""
    data = Ledger(connection).data()
    stack = json.dumps([*data.stack, data.upper])
    connection.execute("UPDATE main_data SET stack = ?, upper = next, next = next + 1", (stack,))


def test_a_level_is_used_again_until_it_is_frozen(home: Home, host: Host, connection: sqlite3.Connection) -> None:
    write(home, host, connection, "echo one > /root/data/user/note; echo two > file")
    assert write(home, host, connection, "cat /root/data/user/note file") == "one\ntwo\n"
    freeze(connection)
    script = "cat /root/data/user/note file; rm file; echo three > /root/data/user/note; ls /root/data"
    assert write(home, host, connection, script) == "one\ntwo\niterations\nstate\ntasks\nuser\n"
    assert (Levels(home).upper(1, "data") / "user/note").read_text() == "one\n"  # a frozen level is never written


def test_dropping_a_level_brings_back_what_was_frozen(home: Home, host: Host, connection: sqlite3.Connection) -> None:
    write(home, host, connection, "echo good > /root/data/state/s; echo kept > a")
    freeze(connection)
    write(home, host, connection, "rm -r /root/data/state a; mkdir a; touch a/b")
    connection.execute("UPDATE main_data SET upper = next, next = next + 1")  # a fresh level over the same stack
    assert write(home, host, connection, "cat /root/data/state/s a") == "good\nkept\n"


def test_long_stacks_are_joined(home: Home, host: Host, connection: sqlite3.Connection) -> None:
    for number in range(FLATTEN_ABOVE + 1):
        script = f"echo {number} > last; echo {number} > file{number}; echo {number} >> /root/data/user/all"
        write(home, host, connection, script + ("; rm file0; ln -s file1 link" if number == 1 else ""))
        freeze(connection)
    before = write(home, host, connection, "ls -l | cut -c1-10,40-; cat last link /root/data/user/all; rm file2")
    levels = Levels(home)
    assert flatten(host, levels, connection)
    data = Ledger(connection).data()
    assert len(data.stack) == 1
    assert not flatten(host, levels, connection)
    after = write(home, host, connection, "touch file2; ls | wc -l; cat last link /root/data/user/all")
    assert after.splitlines()[1:] == before.splitlines()[-len(after.splitlines()) + 1 :]
    removed = collect(host, levels, connection)
    assert len(removed) == FLATTEN_ABOVE + 1
    assert write(home, host, connection, "cat last") == f"{FLATTEN_ABOVE}\n"


def test_what_can_still_be_gone_back_to_is_kept(home: Home, host: Host, connection: sqlite3.Connection) -> None:
    ledger = Ledger(connection)
    write(home, host, connection, "echo one > a")
    ledger.stage("c", "b" * 40, "tree-b", campaign=None, old="a" * 40)
    ledger.approve("person")
    ledger.freeze(0)
    ledger.moved()
    for number in range(3):
        ledger.count_launch()
        ledger.begin_launch(f"n{number}", None)
        write(home, host, connection, f"echo {number} > b; mkdir -p d/e; chmod 0 d/e d")
        assert collect(host, Levels(home), connection) == []
        ledger.failed("crash")
    ledger.returned()
    assert write(home, host, connection, "ls") == "a\n"
    for number in range(KEEP_ASIDE):
        ledger.begin_launch(f"later{number}", None)
        connection.execute("UPDATE main_data SET upper = next, next = next + 1")
    gone = collect(host, Levels(home), connection)
    assert len(gone) >= 2  # the dropped boots, mode-000 directories and all
    assert write(home, host, connection, "ls") == "a\n"


def test_a_kill_between_the_steps_of_joining_loses_nothing(
    home: Home, host: Host, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(FLATTEN_ABOVE + 1):
        write(home, host, connection, f"echo {number} >> all")
        freeze(connection)
    before = Ledger(connection).data().stack

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.data_layers._sync_file_system", killed)
        with pytest.raises(KeyboardInterrupt):
            flatten(host, Levels(home), connection)
    assert Ledger(connection).data().stack == before
    assert collect(host, Levels(home), connection)  # the half-made level
    assert flatten(host, Levels(home), connection)
    assert write(home, host, connection, "wc -l < all") == f"{FLATTEN_ABOVE + 1}\n"


def nest(directory: Path) -> None:
    """Paths of 80 kB, as an instance can make them."""
    here = os.open(directory, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def test_data_that_can_not_be_joined_keeps_no_supervisor_from_starting(
    home: Home, host: Host, connection: sqlite3.Connection
) -> None:
    """Nothing copies such paths. The levels stay as they are then, and the event log says so."""
    for number in range(FLATTEN_ABOVE + 1):
        write(home, host, connection, f"echo {number} > last")
        if number == 0:
            nest(Levels(home).upper(Ledger(connection).data().upper, "app"))
        freeze(connection)
    before = Ledger(connection).data().stack
    join(host, Levels(home), connection)
    assert Ledger(connection).data().stack == before
    assert write(home, host, connection, "cat last") == f"{FLATTEN_ABOVE}\n"
    events = [row["text"] for row in connection.execute("SELECT text FROM event WHERE kind = 'recovery'")]
    assert len(events) == 1 and "could not be joined" in events[0]
    assert len(events[0]) < 1000, "and not with the whole path"
    assert collect(host, Levels(home), connection)  # the half-made level
