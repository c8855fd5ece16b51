"""`sia status`: what it shows, what it never shows, and how fast it starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import database, locks, requests
from orchestrator.campaign_view import lock_path
from orchestrator.cli.status import lines, look
from orchestrator.errors import ConfigError, UsageError
from orchestrator.generations import Ledger
from orchestrator.home import Home, open_home
from orchestrator.processes import alive, started
from orchestrator.supervisor_lock import holder, supervisor_lock

TOP = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / ".git").mkdir()
    made = open_home(tmp_path)
    with closing(database.connect(made.database)) as connection:
        Ledger(connection).found("a" * 40, "tree")
    return made


def run_row(home: Home, name: str, kind: str, pid: int, since: float, label: str, cost: float | None = None) -> None:
    with closing(database.connect(home.database)) as connection:
        connection.execute(
            "INSERT INTO running (id, kind, supervisor, supervisor_started, label, state, started, iterations, tokens,"
            " cost, updated) VALUES (?, ?, ?, ?, ?, 'running', ?, 12, 3400, ?, ?)",
            (name, kind, pid, since, label, time.time() - 300, cost, time.time()),
        )


def test_before_anything_ran(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    found = look(Home(tmp_path / ".sia", tmp_path))
    assert found["supervisor"] is None
    assert found["ledger"] is None
    assert not (tmp_path / ".sia").exists()  # looking creates nothing
    assert "main        not running" in lines(found)


def test_unknown_cost_stays_unknown(home: Home) -> None:
    me = started(os.getpid())
    assert me is not None
    run_row(home, "main-1", "main", os.getpid(), me, "generation 1")
    text = "\n".join(lines(look(home)))
    assert "generation 1, running, up 5 min: 12 iterations (0 valid), 3400 tokens, cost unknown" in text
    assert look(home)["main"]["cost"] is None


def test_what_a_dead_process_left_is_an_orphan(home: Home) -> None:
    run_row(home, "t1", "test", os.getpid(), 12.0, "task × arm × 1")  # the id is in use again, by another process
    found = look(home)
    assert [orphan["id"] for orphan in found["orphans"]] == ["t1"]
    assert found["tests"] == []


def test_a_campaign_whose_process_is_gone_has_died(home: Home) -> None:
    with closing(database.connect(home.database)) as connection:
        connection.execute(
            "INSERT INTO campaign (id, created, file, spec, baseline, state)"
            " VALUES ('c1', 1, 'f.toml', '{}', 'b', 'running')"
        )
        requests.finish(connection, requests.ask(connection, "stop_campaign", "c1"), "it stops")  # before it was killed
    found = look(home)
    assert [(each["state"], each["stopping"]) for each in found["campaigns"]] == [("died", False)]
    assert any(line.endswith("c1, died: 0/0 trials, f.toml") for line in lines(found))
    with locks.hold(lock_path(home, "c1"), "it runs", "wait"):
        found = look(home)
    assert [(each["state"], each["stopping"]) for each in found["campaigns"]] == [("running", True)]


@pytest.mark.parametrize(
    "state, fix", [("done", "sia campaign show c1"), ("failed", "sia campaign show c1"), ("running", "resume c1")]
)
def test_what_a_campaign_that_nobody_runs_can_be_told(home: Home, state: str, fix: str) -> None:
    """One that failed can't be resumed either."""
    with closing(database.connect(home.database)) as connection:
        connection.execute(
            "INSERT INTO campaign (id, created, file, spec, baseline, state) VALUES ('c1', 1, 'f', '{}', 'b', ?)",
            (state,),
        )
    with pytest.raises(UsageError, match="nobody runs campaign c1") as caught:
        requests.explain(home, "stop_campaign", "c1")
    assert fix in caught.value.fix and ("resume" in caught.value.fix) == (state == "running")


def explain(home: Home) -> None:
    with pytest.raises(UsageError, match="no instance"):
        requests.explain(home, "kill", "t1")


@pytest.mark.parametrize("use", [look, explain])
def test_looking_migrates_what_an_older_version_wrote(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Home], object]
) -> None:
    """Whatever the migration adds: here one that is yet to come."""
    later = tmp_path / "migrations"
    shutil.copytree(database.MIGRATIONS, later)
    (later / "9000_more.sql").write_text("CREATE TABLE more (id INTEGER);\n")
    monkeypatch.setattr(database, "MIGRATIONS", later)
    use(home)
    with closing(database.connect(home.database, read_only=True)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 9000
        connection.execute("SELECT * FROM more")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="version 9000"):
        use(home)


def test_names_of_others_can_not_write_to_the_terminal(home: Home) -> None:
    me = started(os.getpid())
    assert me is not None
    run_row(home, "t1", "test", os.getpid(), me, "evil\x1b]0;title\x07\x1b[31m\nsupervisor  fine × a × 1")
    text = lines(look(home))
    assert all("\x1b" not in line and "\n" not in line and "\x07" not in line for line in text)


def test_the_lock_names_its_holder(home: Home) -> None:
    assert holder(home) is None
    with supervisor_lock(home, "supervise"):
        held = holder(home)
        assert held is not None and held.pid == os.getpid()
        assert f"process {os.getpid()}" in lines(look(home))[0]
    assert holder(home) is None


def test_start_times_tell_processes_apart() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    since = started(child.pid)
    assert since is not None and abs(since - time.time()) < 5
    assert alive(child.pid, since)
    assert not alive(child.pid, since - 60)
    child.communicate(b"\n")
    assert started(child.pid) is None


def test_json_and_imports(home: Home) -> None:
    """The command prints JSON, and loads none of the heavy modules."""
    code = (
        "import sys; from orchestrator.cli import main\n"
        "try: main(['status', '--json'])\n"
        "finally: print([m for m in ('pydantic', 'scipy', 'lxml', 'textual', 'psutil', 'git') if m in sys.modules],"
        " file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONPATH": str(TOP)}
    done = subprocess.run([sys.executable, "-c", code], cwd=home.checkout, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"
    values = json.loads(done.stdout)
    assert values["ledger"]["state"] == "STABLE"
    assert values["main"] is None


@pytest.mark.bad_input
def test_bad_input_status_of_a_damaged_database(home: Home) -> None:
    home.database.write_bytes(b"this is no database at all" * 100)
    for wal in home.root.glob("sia.db-*"):
        wal.unlink()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "orchestrator", "status"],
        cwd=home.checkout,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
    )
    print(done.stderr)
    assert done.returncode == 78
    assert "Traceback" not in done.stderr
    assert home.database.read_bytes().startswith(b"this is no database")


def test_an_event_of_a_trial_or_a_campaign_names_it(home: Home) -> None:
    with closing(database.connect(home.database)) as connection:
        connection.executemany(
            "INSERT INTO event (time, kind, subject, text) VALUES (0, ?, ?, ?)",
            [
                ("trial", "c0001t05", "killed by a person"),
                ("trial", "cheater", "cheater is disqualified"),
                ("launch", "generation 1", "generation 1 started"),
            ],
        )
    events = [line for line in lines(look(home)) if line.startswith("event")]
    assert events[-3].endswith(" trial: c0001t05: killed by a person")
    assert events[-2].endswith(":00 trial: cheater is disqualified")
    assert events[-1].endswith(":00 launch: generation 1 started")
