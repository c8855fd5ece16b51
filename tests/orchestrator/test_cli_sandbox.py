"""`sia sandbox run` and `sia doctor`, as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]

SIA = [sys.executable, "-m", "orchestrator"]
ROOT = Path(__file__).resolve().parents[2]


def sia(directory: Path, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*SIA, *words], cwd=directory, input=given, capture_output=True, timeout=120, check=False, env=environment
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / "sub").mkdir(parents=True)
    (directory / "a.txt").write_text("a\n")
    (directory / "b.txt").write_text("b\n")
    return directory


def test_what_it_changed_is_listed_and_nothing_is_written(project: Path) -> None:
    script = "cat; echo c > a.txt; rm b.txt; echo new > sub/new; exit 3"
    found = sia(project, "sandbox", "run", "--", "sh", "-c", script, given=b"from stdin\n")
    assert (found.returncode, found.stdout) == (3, b"from stdin\n")
    assert found.stderr.decode().splitlines() == ["M a.txt", "- b.txt", "+ sub/new"]
    assert (project / "a.txt").read_text() == "a\n" and (project / "b.txt").exists()
    assert sorted(path.name for path in project.iterdir()) == ["a.txt", "b.txt", "sub"]


def test_json(project: Path) -> None:
    found = sia(project, "sandbox", "run", "--json", "--memory-mb", "300", "--", "sh", "-c", "echo x > 'n\033[31m'")
    record = json.loads(found.stdout)
    assert record["exit_code"] == 0 and record["limit"] is None
    assert record["changes"] == [{"path": "n\033[31m", "kind": "added", "is_directory": False, "size": 2, "also": []}]


def test_what_was_kept_can_be_looked_at_later(project: Path, tmp_path: Path) -> None:
    script = "echo c > a.txt; chmod 700 a.txt; rm b.txt; mkdir 'n\033[31mew'; chmod 700 sub"
    found = sia(project, "sandbox", "run", "--keep", str(tmp_path / "kept"), "--", "sh", "-c", script)
    assert found.returncode == 0, found.stderr
    lines = ["Mm a.txt", "- b.txt", "+ new/", "m sub/"]
    assert sorted(found.stderr.decode().splitlines()) == sorted(lines)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["sandbox.json", "upper"]
    later = sia(tmp_path, "sandbox", "diff", "kept")
    assert sorted(later.stdout.decode().splitlines()) == sorted(lines)
    same = sia(tmp_path, "sandbox", "diff", "kept/upper", "--lower", str(project), "--json")
    records = [json.loads(line) for line in same.stdout.splitlines()]
    assert {record["path"]: record["kind"] for record in records}["a.txt"] == "modified"
    for words in (["nowhere"], ["kept/upper", "--lower", "nowhere"]):
        wrong = sia(tmp_path, "sandbox", "diff", *words)
        assert wrong.returncode == 2 and b"no such directory" in wrong.stderr
    for keep in (str(tmp_path / "kept"), str(project / "in")):
        assert sia(project, "sandbox", "run", "--keep", keep, "--", "true").returncode == 2


def test_an_upper_in_memory_is_full_at_its_size(project: Path, tmp_path: Path) -> None:
    script = "rm b.txt; rm -r sub; mkdir sub; echo c > sub/c; head -c 5000000 /dev/zero > big; sleep 60"
    found = sia(
        project, "sandbox", "run", "--upper-mb", "4", "--keep", str(tmp_path / "kept"), "--", "sh", "-c", script
    )
    lines = found.stderr.decode().splitlines()
    assert any("No space left on device" in line for line in lines)
    assert "sia: ended by the limit of 4 MB of disk" in lines and found.returncode == 137
    changes = ["- b.txt", "+ big", "+ sub/c"]
    assert [line for line in lines if line in changes] == changes
    later = sia(tmp_path, "sandbox", "diff", "kept")
    assert later.stdout.decode().splitlines() == changes
    wrong = sia(project, "sandbox", "run", "--upper-mb", "0", "--", "true")
    assert (
        wrong.returncode == 2 and b"--upper-mb 0: a limit must be above 0" in wrong.stderr and b"fix:" in wrong.stderr
    )


def test_names_can_not_paint_the_terminal(project: Path) -> None:
    found = sia(project, "sandbox", "run", "--", "sh", "-c", "echo x > \"$(printf 'n\\033[31mred')\"")
    assert b"\033" not in found.stderr and b"+ nred" in found.stderr


def test_options_of_the_command_are_its_own(project: Path) -> None:
    found = sia(project, "sandbox", "run", "--seconds", "20", "--", "ls", "--json", "-a")
    assert found.returncode == 2 and b"ls:" in found.stderr
    assert sia(project, "sandbox", "run", "--", "echo", "--", "-n").stdout == b"-- -n\n"


def test_limits_are_named(project: Path) -> None:
    found = sia(project, "sandbox", "run", "--seconds", "0.5", "--", "sleep", "30")
    assert found.returncode == 128 + signal.SIGKILL
    assert b"ended by the limit of 0.5 s" in found.stderr


def test_further_paths_and_another_directory(project: Path, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    extra.write_text("extra\n")
    extra.chmod(0o644)
    words = ["sandbox", "run", "--ro", str(extra), "--workdir", str(project), "--", "sh", "-c", f"cat {extra}; pwd"]
    found = sia(tmp_path, *words)
    assert found.stdout.decode() == f"extra\n{project}\n"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--memory-mb", "0", "--", "true"],
        ["--workdir", "/nowhere", "--", "true"],
        ["--ro", "/nowhere", "--", "true"],
    ],
)
def test_wrong_use_is_explained(project: Path, words: list[str]) -> None:
    found = sia(project, "sandbox", "run", *words)
    assert found.returncode == 2
    assert found.stderr.startswith(b"sia: ") and b"Traceback" not in found.stderr


def test_ctrl_c_reaches_the_command_and_leaves_nothing(project: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    words = [
        *SIA,
        "sandbox",
        "run",
        "--",
        "sh",
        "-c",
        "trap 'echo stopped; exit 5' INT; echo up; while :; do sleep 0.05; done",
    ]
    process = subprocess.Popen(words, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout and process.stdout.readline() == b"up\n"
    before = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (5, b"stopped\n")
    assert time.monotonic() - before < 30
    assert list(scratch.iterdir()) == []


def test_doctor(tmp_path: Path) -> None:
    found = sia(tmp_path, "doctor")
    assert found.returncode == 0, found.stdout.decode()
    assert b"FAIL" not in found.stdout and b"promise: there is no network" in found.stdout
    findings = json.loads(sia(tmp_path, "doctor", "--json").stdout)
    assert {finding["state"] for finding in findings} <= {"ok", "note"}
