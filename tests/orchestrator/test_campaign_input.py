"""What is refused before anything is spent: each with its message, and nothing stored."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import database, locks
from tests.orchestrator.campaigns import CARE, PROMPT, Workplace
from tests.orchestrator.trial_kit import environments as environments


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, environments: Path) -> Workplace:
    made = Workplace(tmp_path_factory.mktemp("input"), environments, tasks=1)
    made.branch("careful", {PROMPT: CARE})
    made.branch("outside", {"README.md": "only this"})
    made.branch("needs", {"instance/requirements.txt": "lxml\n"})
    made.git("switch", "-q", "--orphan", "foreign")
    made.write("x", "x")
    made.commit("foreign")
    made.git("switch", "-q", "main")
    return made


def refused(place: Workplace, *arguments: str, code: int = 78) -> str:
    """The message; and no campaign is stored."""
    done = place.sia("campaign", "run", *arguments, code=code)
    print(done.stderr)
    assert not done.stdout
    assert "\n  fix:" in done.stderr
    if (place.state / "sia.db").exists():
        with closing(database.connect(place.state / "sia.db", read_only=True)) as connection:
            assert connection.execute("SELECT count(*) FROM campaign").fetchone()[0] == 0
    assert not list((place.state / "run").glob("*"))
    return done.stderr


@pytest.mark.bad_input
def test_bad_input_campaign_file_is_missing(place: Workplace) -> None:
    assert "nowhere.toml: file not found" in refused(place, "nowhere.toml")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("topic", "text", "message"),
    [
        ("is_not_toml", "tasks = [", "not valid TOML"),
        ("has_an_unknown_key", 'tasks = ["t"]\nengine = "test"\nrepeat = 3\n', "repeat: unknown key"),
        ("has_a_wrong_type", 'tasks = ["t"]\nengine = "test"\nrepeats = "3"\n', "repeats:"),
        ("has_a_negative_number", 'tasks = ["t"]\nengine = "test"\n[limits]\nseconds = -1\n', "limits.seconds:"),
        ("has_a_repeated_candidate", 'tasks = ["t"]\nengine = "test"\ncandidates = ["a", "a"]\n', "named twice"),
        ("names_no_tasks", 'engine = "test"\n', "tasks: required"),
        ("matches_no_tasks", 'tasks = ["nothing/*"]\nengine = "test"\n', "nothing/*"),
        ("names_an_unknown_engine", 'tasks = ["tasks/*"]\nengine = "gpt"\n', "no [engines.gpt]"),
        ("is_not_utf8", None, "not UTF-8"),
    ],
)
def test_bad_input_campaign_file(place: Workplace, topic: str, text: str | None, message: str) -> None:
    file = place.root / f"{topic}.toml"
    file.write_bytes(b"\xff\xfe" if text is None else text.encode())
    shown = refused(place, file.name)
    assert message in shown and file.name in shown


@pytest.mark.bad_input
def test_bad_input_all_faulty_candidates_are_named_at_once(place: Workplace) -> None:
    place.campaign_file("careful", "missing", "outside", "foreign", "needs")
    shown = refused(place, "campaign.toml")
    assert "4 of 5 candidates can't be judged" in shown
    for name in ("missing", "outside", "foreign", "needs"):
        assert f"- {name}" in shown or f"candidate {name!r}" in shown
    assert "- careful" not in shown


@pytest.mark.bad_input
def test_bad_input_engine_command_does_not_exist(place: Workplace) -> None:
    settings = place.root / "sia.toml"
    before = settings.read_text()
    place.campaign_file("careful")
    try:
        settings.write_text(before + '[engines.gone]\ncommand = ["/nowhere/engine"]\n')
        (place.root / "gone.toml").write_text('tasks = ["tasks/*"]\nengine = "gone"\n')
        assert "/nowhere/engine" in refused(place, "gone.toml")
    finally:
        settings.write_text(before)


@pytest.mark.bad_input
def test_bad_input_engine_ends_at_once(place: Workplace) -> None:
    settings = place.root / "sia.toml"
    before = settings.read_text()
    try:
        settings.write_text(before + '[engines.brief]\ncommand = ["sh", "-c", "echo no model here >&2; exit 3"]\n')
        (place.root / "brief.toml").write_text('tasks = ["tasks/*"]\nengine = "brief"\n')
        assert "no model here" in refused(place, "brief.toml")
    finally:
        settings.write_text(before)


@pytest.mark.bad_input
def test_bad_input_parallel_is_zero(place: Workplace) -> None:
    place.campaign_file("careful")
    assert "at least 1" in refused(place, "campaign.toml", "--parallel", "0", code=2)


@pytest.mark.bad_input
def test_bad_input_no_such_campaign(place: Workplace) -> None:
    for words in (("show", "c9"), ("report", "c9"), ("resume", "c9")):
        done = place.sia("campaign", *words, code=2)
        print(done.stderr)
        assert "c9" in done.stderr or "no campaign yet" in done.stderr


@pytest.mark.bad_input
def test_bad_input_state_of_a_newer_version(place: Workplace) -> None:
    marker = place.state / "version"
    place.sia("campaign", "run", "nowhere.toml", code=78)
    before = marker.read_text()
    place.campaign_file("careful")
    try:
        marker.write_text("99\n")
        done = place.sia("campaign", "run", "campaign.toml", code=78)
        print(done.stderr)
        assert "version 99" in done.stderr
    finally:
        marker.write_text(before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB to fill or to make read-only; needs root, as any mount does."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    target = tmp_path / "disk"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "small", str(target)], check=True)
    try:
        yield target
    finally:
        subprocess.run(["umount", str(target)], check=True)


def run_with_home(place: Workplace, state: Path) -> str:
    """The message of a campaign whose state lies elsewhere."""
    place.campaign_file("careful")
    done = subprocess.run(
        place.command("campaign", "run", "campaign.toml"),
        cwd=place.root,
        env=place.environment(SIA_HOME=str(state)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    print(done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (1, 78), done.stderr
    return done.stderr


@pytest.mark.bad_input
def test_bad_input_state_on_a_full_disk(place: Workplace, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"\0" * (2 * 1024 * 1024 - 16384))
    state = small_disk / "sia"
    assert "space" in run_with_home(place, state) or "full" in run_with_home(place, state)


@pytest.mark.bad_input
def test_bad_input_state_on_a_read_only_disk(place: Workplace, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert "can't be written" in run_with_home(place, small_disk / "sia")


def test_whoever_looks_at_a_lock_does_not_make_taking_it_fail(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    looking = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)  # as `locks.holder` does for a moment
    threading.Timer(0.1, os.close, (looking,)).start()
    with locks.hold(path, "x", "y"):
        held = locks.look(path)
        assert held is not None and (held.pid, held.command) == (os.getpid(), "")
        assert abs(held.since - time.time()) < 60
    assert locks.look(path) is None and not path.exists()


def test_a_lock_is_free_once_its_holder_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"import os, pathlib; from orchestrator import locks; c = locks.hold(pathlib.Path({str(path)!r}), 'x', 'y')"
    child = subprocess.Popen(
        [sys.executable, "-c", f"{code}; c.__enter__(); print('held', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin and child.stdout
    with child:
        assert child.stdout.readline() == "held\n"
        assert locks.holder(path) == child.pid
        with pytest.raises(Exception, match=f"process {child.pid}"), locks.hold(path, "x", "y"):
            pass
        child.kill()
    assert locks.holder(path) is None
    with locks.hold(path, "x", "y"):
        assert locks.holder(path) == os.getpid()
    assert not path.exists()
