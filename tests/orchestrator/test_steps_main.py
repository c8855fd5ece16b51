"""A person steps in with the main instance: pause, resume, kill, a message; and what is kept of its output."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import database, requests
from orchestrator.cli import status
from orchestrator.stdout_log import StdoutLog
from tests.orchestrator.main_kit import MainKit, leftovers
from tests.orchestrator.trial_kit import ONE_MODE
from tests.orchestrator.trial_kit import environments as environments

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(240)]


def step(kit: MainKit, kind: str, text: str = "") -> str:
    """Ask the supervisor for something, and wait for its answer."""
    assert requests.explain(kit.home, kind, "main")
    with closing(database.connect(kit.home.database)) as connection:
        subject = requests.find_instance(connection, "main").id
        result = requests.wait(connection, requests.ask(connection, kind, subject, text), 30)
    assert result is not None
    return result


def row(kit: MainKit) -> sqlite3.Row:
    with kit.database() as connection:
        found: sqlite3.Row = connection.execute("SELECT * FROM running WHERE kind = 'main'").fetchone()
        return found


@ONE_MODE
def test_a_person_steps_in(mode: str, tmp_path: Path, environments: Path) -> None:
    """Paused for longer than it may be silent, it is not stalled; killed, it comes back; stopped while paused, it ends
    in order."""
    kit = MainKit(tmp_path, environments, timeout=1.5)
    kit.write("policy.toml", (kit.repo / "policy.toml").read_text().replace('"true()"', '"contains(@x, 1)"') + SPEAKS)
    with kit.supervise() as process:
        kit.until("work", kit.works)
        assert step(kit, "pause") == "paused"
        kit.until("the row to say so", lambda: row(kit)["paused"])
        before, stalls = row(kit)["iterations"], kit.events("stalled")
        time.sleep(2.0)
        assert row(kit)["iterations"] <= before + 1, "an answer that was asked before may still come"
        assert kit.events("stalled") == stalls
        assert any(", PAUSED for " in line for line in status.lines(status.look(kit.home)))
        assert step(kit, "message", "m1").startswith("stored at bytes 0–3")
        assert step(kit, "resume") == "it goes on"
        kit.until("the message", lambda: kit.heard() == ["m1"])
        known = ("paused_seconds", "cpu", "memory_mb", "last_action")
        seen = kit.until("a look at it", lambda: all((r := row(kit))[name] for name in known) and r)
        assert seen["paused_seconds"] > 1.9 and seen["directory"] == str(kit.home.main)
        assert "killed" in kit.sia("kill", "main").stderr
        kit.until("another start", lambda: kit.works() and row(kit)["id"] != seen["id"])
        with kit.database() as connection:
            causes = [r["cause"] for r in connection.execute("SELECT cause FROM launch WHERE finished IS NOT NULL")]
        assert len(causes) == 1 and causes[0].startswith("killed by a person (")
        assert step(kit, "pause") == "paused"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with kit.database() as connection:
        ends = connection.execute("SELECT exit_code, cause FROM launch ORDER BY started DESC").fetchone()
    assert tuple(ends) == (0, "stopped by the supervisor")
    assert "hello from main" in (kit.home.main / "stdout.log").read_text()
    assert not leftovers(kit.home)


SPEAKS = """
[[rule]]
when = "not(write_stdout)"
answer = "<write_stdout>hello from main</write_stdout>"
[[rule]]
when = "true()"
answer = "<reasoning>nothing to do</reasoning>"
"""


def test_its_output_is_kept_within_bounds(tmp_path: Path) -> None:
    log = StdoutLog(tmp_path / "stdout.log", cap=10)
    for piece in (b"12345", b"6789", b"abc", b"x" * 50):
        log.write(piece)
    log.close()
    log.write(b"y")
    log.close()
    assert (tmp_path / "stdout.log").read_bytes() == b"y"
    assert (tmp_path / "stdout.log.1").read_bytes() == b"x" * 10
