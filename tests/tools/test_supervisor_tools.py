"""The agent's tools, run as it runs them: as programs, with real git and a real socket."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


class Desk:
    """A supervisor's socket that answers everything alike and keeps the requests."""

    def __init__(self, path: Path, answer: bytes) -> None:
        self.path, self.requests, self._answer = path, [], answer  # type: ignore[var-annotated]
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                data = b""
                while not data.endswith(b"\x04") and (piece := connection.recv(65536)):
                    data += piece
                if data:
                    self.requests.append(ElementTree.fromstring(data[:-1]))
                    connection.sendall(self._answer)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


class Place:
    """A directory with the agent's history as a bundle, and its tools."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.clone = directory, directory / "clone"
        self.bundle, self.socket = directory / "agent.bundle", directory / "s.sock"
        self._origin = directory / "origin"
        self.git("init", "--quiet", "--initial-branch=main", str(self._origin))
        self.generation("one")

    def git(self, *arguments: str, where: Path | None = None) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=where or self.directory, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def environment(self) -> dict[str, str]:
        names = {f"GIT_{role}_{key}": "a" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "GIT_CONFIG_NOSYSTEM": "1",
            "SIA_AGENT_BUNDLE": str(self.bundle),
            "SIA_SUPERVISOR_SOCKET": str(self.socket),
            **names,
        }

    def generation(self, text: str) -> None:
        (self._origin / "code.py").write_text(text)
        self.git("add", "--all", where=self._origin)
        self.git("commit", "--quiet", "--message", text, where=self._origin)
        self.git("bundle", "create", "--quiet", str(self.bundle), "HEAD", "main", where=self._origin)

    def tool(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(TOOLS / name), *arguments], env=self.environment, capture_output=True, text=True, timeout=30
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def desk(place: Place) -> Iterator[Desk]:
    made = Desk(place.socket, "Stored as proposal/1. ü".encode() + b"\x04")
    yield made
    made.close()


@pytest.mark.spec("36")
def test_the_whole_way_of_a_proposal(place: Place, desk: Desk) -> None:
    cloned = place.tool("clone", str(place.clone))
    assert cloned.returncode == 0 and "main is" in cloned.stdout, cloned.stderr
    place.git("switch", "--quiet", "-c", "better", where=place.clone)
    (place.clone / "code.py").write_text("two")
    early = place.tool("propose", "better", "why", str(place.clone))
    assert early.returncode == 1 and "commit your change first" in early.stderr
    place.git("commit", "--quiet", "-am", "two", where=place.clone)
    done = place.tool("propose", "better", 'it\'s <better> & "faster"\n', str(place.clone))
    assert done.returncode == 0 and done.stdout == "Stored as proposal/1. ü\n", done.stderr
    (request,) = desk.requests
    assert request.tag == "propose" and request.get("branch") == "better"
    assert request.get("why") == 'it\'s <better> & "faster" '
    sent = place.directory / "sent.bundle"
    sent.write_bytes(base64.b64decode(request.text or "", validate=True))
    place.git("bundle", "verify", "--quiet", str(sent), where=place._origin)
    assert "refs/heads/better" in place.git("bundle", "list-heads", str(sent))


def test_a_clone_is_brought_up_to_date(place: Place) -> None:
    assert place.tool("clone", str(place.clone)).returncode == 0
    place.git("switch", "--quiet", "-c", "mine", where=place.clone)
    (place.clone / "code.py").write_text("not committed")
    place.generation("two")
    again = place.tool("clone", str(place.clone))
    assert again.returncode == 0 and "up to date" in again.stdout and "two" in again.stdout
    assert (place.clone / "code.py").read_text() == "not committed"


def test_results_and_status(place: Place, desk: Desk) -> None:
    assert place.tool("status").stdout.startswith("Stored")
    assert place.tool("results", "c1").returncode == 0
    assert place.tool("results").returncode == 0
    assert place.tool("trial", "better", "task").returncode == 0
    assert [(request.tag, dict(request.attrib)) for request in desk.requests] == [
        ("status", {}),
        ("results", {"campaign": "c1"}),
        ("results", {}),
        ("trial", {"branch": "better", "task": "task"}),
    ]


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["status"], 1, "no supervisor listens"),
        (["clone"], 1, "without its history"),
        (["propose", "x", "why", "/nowhere"], 1, "git rev-parse"),
        (["propose", "x"], 2, "usage"),
        (["propose", "x", " "], 2, "usage"),
        (["results", "a", "b"], 2, "usage"),
        (["clone", "a", "b"], 2, "usage"),
        (["clone", "--help"], 0, "usage"),
        (["status", "--help"], 0, "usage"),
    ],
)
def test_what_goes_wrong_is_said(place: Place, words: list[str], code: int, expected: str) -> None:
    if words == ["clone"]:
        place.bundle.unlink()
    done = place.tool(*words)
    assert done.returncode == code and expected in done.stderr and "Traceback" not in done.stderr


def test_a_supervisor_that_hangs_up(place: Place) -> None:
    desk = Desk(place.socket, b"")
    try:
        done = place.tool("status")
        assert done.returncode == 1 and "without an answer" in done.stderr
    finally:
        desk.close()
