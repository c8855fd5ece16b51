"""The way out of a sandbox with an allow-list: how it is made, who can't use it, and what it leaves unchanged."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import gate
from sandbox.errors import CannotIsolate
from tests.sandbox import network_kit
from tests.sandbox.network_kit import Inside

site, shell = network_kit.site, network_kit.shell
pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]


def test_exit_codes_and_signals_are_the_commands_own(shell: Inside) -> None:
    for script, expected in (
        ("exit 7", (7, None)),
        ("kill -PIPE $$", (None, 13)),
        ("yes | head -1; exit 0", (0, None)),
    ):
        outcome, _ = shell(script, ("a.test:1",))
        assert (outcome.exit_code, outcome.signal) == expected
    outcome, text = shell("", ("a.test:1",), command=("nosuch",))
    assert outcome.exit_code == 127 and "nosuch" in text


@pytest.mark.bad_input
def test_bad_input_allow_list_of_a_sandbox(inside: Inside, shell: Inside) -> None:
    with pytest.raises(CannotIsolate) as caught:
        shell("true", ("example.org",))
    print(caught.value.render())
    with pytest.raises(CannotIsolate, match="needs a Python inside"):
        inside("true", network=("example.org:80",))


@pytest.mark.parametrize("kind", ["pipe", "directory", "unix", "datagram", "elsewhere", "not listening", "nothing"])
def test_only_the_listener_that_was_agreed_is_served(kind: str) -> None:
    """What comes out of a sandbox in its place is closed, and serves nobody."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    way_out = gate.Gate(("a.test:1",), lambda name, port: [])
    with contextlib.ExitStack() as stack:
        inside = stack.enter_context(socket.socket(fileno=os.dup(way_out.connect())))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        datagram = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        elsewhere = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        idle = stack.enter_context(socket.socket())
        null = stack.enter_context(open(os.devnull))
        directory = os.open("/", os.O_PATH)
        stack.callback(os.close, directory)
        sent = {"pipe": null, "unix": unix, "datagram": datagram, "elsewhere": elsewhere, "not listening": idle}
        number = directory if kind == "directory" else sent[kind].fileno() if kind in sent else None
        socket.send_fds(inside, [b"l"], [] if number is None else [number, number])
        way_out.open()
        way_out._thread.join(10)
        assert not way_out._thread.is_alive()
    way_out.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_command_line_takes_an_allow_list(site: int, tmp_path: Path) -> None:
    def sia(*words: str) -> subprocess.CompletedProcess[str]:
        root = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-m", "orchestrator", "sandbox", "run", *words]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
    words = ("--network", f"allow:127.0.0.1:{site}", "--", "python", "-c", fetch)
    found = sia(*words, f"http://127.0.0.1:{site}/cli")
    assert (found.returncode, found.stdout) == (0, f"/cli for 127.0.0.1:{site}\n"), found.stderr
    assert f"@ 127.0.0.1:{site} " in found.stderr and "bytes sent" in found.stderr
    found = sia("--json", *words, "http://evil.test/")
    record = json.loads(found.stdout.splitlines()[-1])
    assert [(c["host"], c["allowed"]) for c in record["connections"]] == [("evil.test", False)]
    for wrong in (["host", "allow:a.test:1"], ["a.test:1"], ["allow:a.test"]):
        found = sia(*(word for value in wrong for word in ("--network", value)), "--", "true")
        assert found.returncode in (2, 78) and "fix:" in found.stderr
