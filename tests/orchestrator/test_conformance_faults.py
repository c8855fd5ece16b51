"""Each way of breaking the contract is named. Rights make no difference to that, so one mode is enough."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from orchestrator.conformance import TITLES, check
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import TrialKit

environments, kit = trial_kit.environments, trial_kit.kit


@pytest.fixture
def mode() -> str:
    """The rights at hand."""
    return "user" if os.geteuid() else "root"


# A whole instance in one page, without a line of the standard agent. FAULT names the promise that it breaks.
SMALL = r"""
import json, os, re, signal, socket, subprocess, sys, time
from html import escape

FAULT = "none"
STATE = "/root/data/state/small.json"
line = socket.socket(fileno=int(os.environ["SIA_ENGINE_FD"]))
code = None

def asked(signum, frame):
    global code
    code = 42 if signum == signal.SIGUSR1 else 0

signal.signal(signal.SIGUSR1, signal.SIG_IGN if FAULT == "deaf" else asked)
signal.signal(signal.SIGTERM, signal.SIG_IGN if FAULT == "stays" else asked)
memory = json.load(open(STATE)) if os.path.exists(STATE) and FAULT != "forgets" else []

def ask():
    context = "<context>" + "".join(escape(item) for item in memory) + "</context>"
    body = f"<system>small</system><schema>x</schema><context>{escape(context)}</context>"
    request = "<infer_xml>" + ("<junk" if FAULT == "babble" else body) + "</infer_xml>"
    line.sendall(request.encode() + b"\x04")
    reply = b""
    while not reply.endswith(b"\x04"):
        data = line.recv(65536)
        if not data:
            sys.exit(9)
        reply += data
    return reply[:-1].decode("utf-8", "replace")

def act(answer):
    if answer.startswith("<read_stdin"):
        memory.append("nothing" if FAULT == "ignores" else os.read(0, 65536).decode())
    elif found := re.fullmatch("<write_stdout>(.*)</write_stdout>", answer):
        os.write(1, found[1].encode("latin-1", "replace") if FAULT == "latin" else found[1].encode())
    elif found := re.fullmatch(r"<single><!\[CDATA\[(.*)\]\]></single>", answer):
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SIA_ENGINE_FD")}
        with open("/tmp/out", "w+") as out:
            where = "/tmp" if FAULT == "elsewhere" else None
            kept = None if FAULT == "leaks" else environment
            subprocess.run(["sh", "-c", found[1]], stdout=out, stdin=subprocess.DEVNULL, cwd=where, env=kept)
            out.seek(0)
            memory.append(out.read())
        if FAULT == "waits":
            time.sleep(2)
    elif "never closed" in answer and FAULT == "brittle":
        raise ValueError(answer)
    elif "\x00" in answer and FAULT == "hangs":
        sys.exit(1)

while code is None:
    answer = ask()
    if answer.startswith("\x15budget"):
        sys.exit(3 if FAULT == "spent" else 0)
    if "\x15" not in answer:
        act(answer)
    with open(STATE, "w") as file:
        json.dump(memory, file)
sys.exit(code)
"""


def failed(kit: TrialKit, program: str) -> dict[str, str]:
    """Number → detail of the checks that a program fails."""
    return {item.number: item.detail for item in check(kit.host, kit.instance(program)) if not item.passed}


def test_any_program_can_keep_it(kit: TrialKit) -> None:
    assert failed(kit, SMALL) == {}


def test_nothing_tells_of_the_check(kit: TrialKit) -> None:
    """The supervisor listens here as in every other launch: an instance that looks for that finds no difference."""
    looks = """
import socket
supervisor = socket.socket(socket.AF_UNIX)
supervisor.connect("/run/sia/supervisor.sock")
supervisor.sendall(b"<status/>\\x04")
assert supervisor.recv(1000).startswith(b"The supervisor runs.")
supervisor.close()
"""
    assert failed(kit, looks + SMALL) == {}
    assert not list(kit.home.run.glob("s-*"))


@pytest.mark.parametrize(
    ("fault", "number", "words"),
    [
        ("babble", "15", "not well-formed"),
        ("ignores", "5a", "not in the prompt"),
        ("latin", "5b", "standard output holds"),
        ("elsewhere", "6", "script's output"),
        ("leaks", "8", "inherits"),
        ("waits", "7", "came after 2 s"),
        ("brittle", "10", "ValueError"),
        ("hangs", "12", "exit code 1"),
        ("deaf", "34a", "still runs"),
        ("forgets", "35", "before the restart"),
        ("stays", "34b", "still running"),
        ("spent", "19b", "exit code 3"),
    ],
)
def test_each_broken_promise_is_named(
    kit: TrialKit, monkeypatch: pytest.MonkeyPatch, fault: str, number: str, words: str
) -> None:
    monkeypatch.setattr("orchestrator.conformance.BACKGROUND_SECONDS", 1.5)
    monkeypatch.setattr("orchestrator.conformance.END_SECONDS", 2.0)
    found = failed(kit, SMALL.replace('FAULT = "none"', f'FAULT = "{fault}"'))
    assert words in found.get(number, ""), found


CUT = "import socket, time; line = socket.socket(fileno=3); "
SILENT = ("closed its engine line", "no request came in time")  # pid 1 may hold the line open


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit(3)", ("exit code 3",)),
        ("import os; os.write(1, bytes(range(256)) * 1000); os.write(2, bytes(range(256)) * 1000)", ("exit code 0",)),
        ("import os, time; os.close(int(os.environ['SIA_ENGINE_FD'])); time.sleep(60)", SILENT),
        (CUT + "line.sendall(b'<infer_xml>half'); line.close(); time.sleep(60)", SILENT),
    ],
)
def test_bad_input_instance(
    kit: TrialKit,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setattr("orchestrator.conformance.FIRST_SECONDS", 5.0)
    found = failed(kit, program)
    assert any(word in found["19"] for word in words), found["19"]
    with capsys.disabled():
        print(f"\n  check 19 ({TITLES['19']}): {found['19'][:200]}")


def test_a_schema_with_other_actions_is_asked_less(kit: TrialKit) -> None:
    schema = b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="act"/></xs:schema>'
    checks = check(kit.host, replace(kit.instance(SMALL), schema=schema))
    assert {item.number for item in checks if "not asked" in item.detail} == {"5a", "5b", "6", "7", "8"}
    assert all(item.passed for item in checks)
