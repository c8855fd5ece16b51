"""A person steps in with a running trial: what happens to it, and that its result counts neither for nor against."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import Failed
from orchestrator.kept_changes import MOST, ChangeList
from orchestrator.live import LiveAnswer, LiveFiles
from orchestrator.protocol import Request
from orchestrator.trial import Stopped, run_trial
from orchestrator.trial_control import KILLED, SPOKEN_TO, TrialControl
from orchestrator.trial_record import TrialRecord
from sandbox.diff import Change
from tests.orchestrator import trial_kit
from tests.orchestrator.main_kit import leftovers
from tests.orchestrator.trial_kit import ONE_MODE, TrialKit

environments, kit = trial_kit.environments, trial_kit.kit
pytestmark = pytest.mark.sandbox
# It counts, forks all the time, and some of what it starts ignores everything that can be ignored.
FORKS = """
    import os, signal, sys, time
    open("answer", "w").write("42")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + float(sys.stdin.readline().split()[-1])
    while time.monotonic() < end:
        if os.fork() == 0:
            time.sleep(0.05)
            os._exit(0)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass
        os.write(1, b"x")
        time.sleep(0.01)
"""


class Running:
    """A trial that runs in a thread; `end` gives its record, or what it raised."""

    def __init__(self, kit: TrialKit, program: str, instruction: str, test: str, seconds: float) -> None:
        task = kit.task(test, files={"instruction.md": instruction})
        self.stop = threading.Event()
        self.control = TrialControl(self.stop)
        spec = kit.spec(kit.instance(program), task, seconds=seconds)
        self.spec = replace(spec, control=self.control, stop=self.stop)
        self.record: TrialRecord | None = None
        self.raised: BaseException | None = None
        self._context = kit.context()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.record = run_trial(self._context, self.spec)
        except BaseException as error:
            self.raised = error
        finally:
            self.control.over()

    def says(self) -> int:
        """Bytes that it has printed."""
        path = self.spec.directory / "stdout.txt"
        return path.stat().st_size if path.exists() else 0

    def until(self, phase: str) -> None:
        """Wait for a phase, and if it is `running` for a sign of life."""
        deadline = time.monotonic() + 20
        while self.control.now().state != phase or (phase == "running" and not self.says()):
            assert time.monotonic() < deadline and self._thread.is_alive(), self.control.now()
            time.sleep(0.01)

    def end(self) -> TrialRecord:
        """Its record."""
        self._thread.join(30)
        assert self.record is not None, self.raised
        return self.record


@contextmanager
def running(
    kit: TrialKit, program: str, instruction: str = "100", *, test: str = trial_kit.FORTY_TWO, seconds: float = 60.0
) -> Iterator[Running]:
    """A trial of `program`, over at the end of the block."""
    trial = Running(kit, program, instruction, test, seconds)
    try:
        yield trial
    finally:
        trial.stop.set()
        trial._thread.join(30)
    assert not trial._thread.is_alive()
    assert not [line for line in leftovers(kit.home) if str(trial.spec.directory) in line]
    assert not (trial.spec.directory / "layers").exists()


def test_killed(kit: TrialKit) -> None:
    with running(kit, FORKS) as trial:
        trial.until("running")
        assert trial.control.kill() == "killed"
        record = trial.end()
    assert (record.outcome, record.detail, record.excluded, record.reward) == ("invalid", KILLED, KILLED, None)
    with pytest.raises(Failed, match="ended"):
        trial.control.kill()
    assert (trial.spec.directory / "stdin.txt").read_text() == "100\n"
    kept = [json.loads(line) for line in (trial.spec.directory / "changes.jsonl").read_text().splitlines()]
    assert {"path": "/app/answer", "kind": "added", "directory": False, "size": 2, "also": []} in kept


def test_paused_time_does_not_count(kit: TrialKit) -> None:
    """It works for 0.6 s of its own, may take 1.5 s, and is paused for longer than that."""
    with running(kit, FORKS, "2.5", seconds=2.0) as trial:
        trial.until("running")
        assert trial.control.pause() == "paused"
        said, begun = trial.says(), time.time()
        time.sleep(2.2)
        now = trial.control.now()
        assert trial.says() == said, "it stands still"
        assert now.paused is not None and now.paused <= begun and now.state == "running"
        assert trial.control.resume() == "it goes on"
        assert trial.control.now().paused is None and trial.control.now().paused_seconds > 2.1
        with pytest.raises(Failed, match="not paused"):
            trial.control.resume()
        record = trial.end()
    assert (record.outcome, record.reward, record.excluded) == ("completed", 1.0, None)
    assert record.seconds < 2.0 and any(note.startswith("paused by a person for 2.") for note in record.notes)


def test_the_limit_holds_without_pauses(kit: TrialKit) -> None:
    with running(kit, FORKS, "100", seconds=1.0) as trial:
        trial.until("running")
        trial.control.pause()
        trial.control.resume()
        record = trial.end()
    assert (record.outcome, record.detail) == ("limit", "seconds")


def test_ctrl_c_while_it_is_paused_leaves_nothing(kit: TrialKit) -> None:
    with running(kit, FORKS) as trial:
        trial.until("running")
        trial.control.pause()
        begun = time.monotonic()
        trial.stop.set()
        trial._thread.join(20)
        assert time.monotonic() - begun < 5.0
        assert isinstance(trial.raised, Stopped) and trial.record is None


def test_killed_while_it_is_paused(kit: TrialKit) -> None:
    with running(kit, FORKS) as trial:
        trial.until("running")
        trial.control.pause()
        assert trial.control.kill() == "killed"
        assert trial.end().excluded == KILLED


READS = """
    import sys
    print(sys.stdin.readline(), flush=True)
    if "please" in sys.stdin.readline():
        open("answer", "w").write("42")
"""


@ONE_MODE
def test_a_message_is_read_and_the_result_does_not_count(kit: TrialKit) -> None:
    with running(kit, READS) as trial:
        trial.until("running")
        assert "does not count" in trial.control.message("please\n")
        record = trial.end()
    assert (record.outcome, record.detail, record.excluded, record.reward) == ("invalid", SPOKEN_TO, SPOKEN_TO, None)
    assert any("reward 1, which does not count" in note for note in record.notes)
    assert (trial.spec.directory / "stdin.txt").read_text() == "100\nplease\n"
    with pytest.raises(Failed, match="ended"):
        trial.control.message("more")
    with pytest.raises(Failed, match="ended"):
        trial.control.pause()


@ONE_MODE
def test_killed_while_it_is_verified(kit: TrialKit) -> None:
    with running(kit, "print('up', flush=True)", test="sleep 100") as trial:
        trial.until("verifying")
        with pytest.raises(Failed, match="ended"):
            trial.control.pause()
        assert trial.control.kill() == "killed"
        record = trial.end()
    assert (record.outcome, record.detail, record.reward) == ("invalid", KILLED, None)


@ONE_MODE
def test_what_it_uses_is_known(kit: TrialKit) -> None:
    program = "open('big', 'wb').write(b'x' * (3 << 20))\nprint('up', flush=True)\nwhile True: pass"
    with running(kit, program) as trial:
        trial.until("running")
        deadline = time.monotonic() + 15
        while not (now := trial.control.now()).cpu or not now.disk_mb or now.disk_mb < 3:
            assert time.monotonic() < deadline, now
            time.sleep(0.05)
        trial.control.kill()
    assert now.memory_mb is not None and now.memory_mb > 1
    assert now.journal == trial.spec.id and now.directory == str(trial.spec.directory)


def test_a_list_of_changes_has_bounds(tmp_path: Path) -> None:
    changes = ChangeList(tmp_path)
    for number in range(MOST + 5):
        changes.add("/app/", Change(f"\udcff{number}", "added", False, 1))
    assert changes.full
    lines = (tmp_path / "changes.jsonl").read_text().splitlines()
    assert len(lines) == MOST + 1 and json.loads(lines[-1]) == {"more": True}
    assert json.loads(lines[0])["path"] == "/app/\udcff0"


def test_live_answers_are_written_for_whoever_watches(kit_home: LiveFiles) -> None:
    files, answer = kit_home, LiveAnswer()
    file, wanted = files.directory / "t1.json", files.directory / "t1.wanted"
    files.look({"t1": answer})
    assert not files.directory.exists(), "nobody watches"
    files.directory.mkdir()
    wanted.touch()
    answer.asking(3, Request("infer_xml", "s", "", "<context>\udc80</context>", ()))
    answer.answering("<re")
    _again(files, answer)
    assert json.loads(file.read_text()) | {"asked": 0} == {
        "n": 3,
        "asked": 0,
        "context": "<context>\udc80</context>",
        "answer": "<re",
        "state": "answering",
    }
    before = file.stat().st_mtime_ns
    _again(files, answer)
    assert file.stat().st_mtime_ns == before, "nothing new"
    os.utime(wanted, (1e9, 1e9))
    answer.working()
    _again(files, answer)
    assert json.loads(file.read_text())["state"] == "answering", "nobody watches any more"
    files._next = 0.0
    files.look({})
    assert not file.exists()
    files.close()
    assert not files.directory.exists()


def _again(files: LiveFiles, answer: LiveAnswer) -> None:
    files._next = 0.0
    files.look({"t1": answer})


@pytest.fixture
def kit_home(tmp_path: Path) -> LiveFiles:
    """Live files of an empty home."""
    from orchestrator.home import Home

    (tmp_path / ".sia/run").mkdir(parents=True)
    return LiveFiles(Home(tmp_path / ".sia", tmp_path))
