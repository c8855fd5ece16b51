"""Landlock for code under test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import confine

pytestmark = pytest.mark.skipif(not confine.supported(), reason="this kernel has no Landlock")


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", "-S", confine.__file__, *command]
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """(workdir, elsewhere); elsewhere must not lie below /tmp, which is allowed."""
    work = tmp_path / "work"
    work.mkdir()
    return work, Path("/var/tmp")


def test_writes_in_the_workdir_and_tmp_only(places: tuple[Path, Path]) -> None:
    work, elsewhere = places
    target = elsewhere / f"confine-test-{work.stat().st_ino}"
    target.write_text("reward 0\n")
    try:
        allowed = "echo a > a; mkdir d; mv a d/a; cat d/a; echo x >/dev/null"
        forbidden = f"echo 1 > {target}; rm -f {target}; : > {target}.new"
        found = run(work, "sh", "-c", f"{allowed}; {forbidden}")
        assert found.stdout == "a\n"
        assert target.read_text() == "reward 0\n"
        assert not Path(f"{target}.new").exists()
    finally:
        target.unlink()


def test_a_daemon_is_confined_too(places: tuple[Path, Path]) -> None:
    work, elsewhere = places
    target = elsewhere / f"confine-daemon-{work.stat().st_ino}"
    run(work, "sh", "-c", f"(setsid sh -c 'sleep 0.1; echo 1 > {target}' &) >/dev/null 2>&1; sleep 0.3")
    assert not target.exists()


def test_exit_codes(places: tuple[Path, Path]) -> None:
    assert run(places[0], "sh", "-c", "exit 5").returncode == 5
    missing = run(places[0], "nosuch-command")
    assert missing.returncode == 127 and "nosuch-command" in missing.stderr
    nothing = run(places[0])
    assert nothing.returncode == 126 and "usage" in nothing.stderr


@pytest.mark.skipif(confine.version() < 6, reason="signals are scoped since version 6")
def test_parents_can_not_be_killed(places: tuple[Path, Path]) -> None:
    found = run(places[0], "sh", "-c", "kill -9 $PPID; echo $?")
    assert found.stdout == "1\n" and found.returncode == 0


def test_without_landlock_nothing_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(confine, "version", lambda: 0)
    with pytest.raises(SystemExit) as ended:
        confine.restrict(["/tmp"])
    assert ended.value.code == 126
    assert "no Landlock" in capsys.readouterr().err


def test_closed_places_can_not_be_read(places: tuple[Path, Path]) -> None:
    """In the verifier /tests and /logs lie at the top; here a directory that is there is closed in their place."""
    assert {"tests", "logs"} == confine.CLOSED
    script = "import sys; from sandbox import confine; confine.CLOSED = {sys.argv.pop(1)}; confine.main()"
    environment = {"PYTHONPATH": str(Path(confine.__file__).parents[1]), "PATH": "/usr/bin:/bin"}

    def listing(closed: str) -> int:
        words = [sys.executable, "-c", script, closed, "ls", "/etc"]
        return subprocess.run(words, cwd=places[0], env=environment, capture_output=True, check=False).returncode

    assert listing("nothing") == 0
    assert listing("etc") != 0
