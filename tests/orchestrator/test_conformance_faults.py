"""Each way of breaking the contract is named. Rights make no difference to that, so one mode is enough."""

from __future__ import annotations

import os
import resource
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
from html import escape, unescape

FAULT = "none"
STATE, LOG = "/root/data/state/small.json", "/root/data/iterations"
UNFIT = re.compile("[\\x00-\\x08\\x0b-\\x1f\\ud800-\\udfff\\ufffe\\uffff]")
line = socket.socket(fileno=int(os.environ["SIA_ENGINE_FD"]))
code = None

def asked(signum, frame):
    global code
    code = 42 if signum == signal.SIGUSR1 else 0

signal.signal(signal.SIGUSR1, signal.SIG_IGN if FAULT == "deaf" else asked)
signal.signal(signal.SIGTERM, signal.SIG_IGN if FAULT == "stays" else asked)
memory = json.load(open(STATE)) if os.path.exists(STATE) and FAULT != "forgets" else {}
number = max(map(int, memory), default=0)

def add(text, repeat=""):
    global number
    number += 1
    memory[str(number)] = [text, repeat]

def ask():
    entries = "".join(f'<entry id="{name}">{escape(text)}</entry>' for name, (text, _) in memory.items())
    body = f"<system>small</system><schema>x</schema><context>{escape('<context>' + entries + '</context>')}</context>"
    request = "<infer_xml>" + ("<junk" if FAULT == "babble" else body) + "</infer_xml>"
    if FAULT == "hurries":
        request = "<token_limit/>\x04" + request
    line.sendall(request.encode("utf-8", "surrogatepass") + b"\x04")
    replies = []
    rest = b""
    while len(replies) < (2 if FAULT == "hurries" else 1):
        data = line.recv(65536)
        if not data:
            sys.exit(9)
        *whole, rest = (rest + data).split(b"\x04")
        replies += whole
    return replies[-1].decode("utf-8", "replace")

def run(script, timeout=60.0):
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SIA_ENGINE_FD")}
    with open("/tmp/out", "wb+") as out:
        process = subprocess.Popen(
            ["sh", "-c", script], stdout=out, stdin=subprocess.DEVNULL, start_new_session=True,
            cwd="/tmp" if FAULT == "elsewhere" else None, env=None if FAULT == "leaks" else kept,
        )
        try:
            process.wait(None if FAULT == "patient" else timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        text = out.read(-1 if FAULT == "hoards" else 20000).decode("utf-8", "surrogateescape")
    return text if FAULT == "raw" else UNFIT.sub("?", text)

def act(answer):
    if answer.startswith("<read_stdin"):
        add("nothing" if FAULT == "ignores" else os.read(0, 65536).decode())
    elif found := re.fullmatch("<write_stdout>(.*)</write_stdout>", answer):
        os.write(1, found[1].encode("latin-1", "replace") if FAULT == "latin" else found[1].encode())
    elif found := re.fullmatch(r"<(single|repeat)(?: timeout=\"(.*?)\")?>(.*)</\1>", answer, re.DOTALL):
        script = found[3].removeprefix("<![CDATA[").removesuffix("]]>") if "CDATA" in answer else unescape(found[3])
        add(run(script, float(found[2] or 60)), script if found[1] == "repeat" else "")
        if FAULT == "waits" and script.endswith("&"):
            time.sleep(2)
    elif found := re.fullmatch('<delete id="(.*)"/>', answer):
        if FAULT == "strict":
            del memory[found[1]]
        elif FAULT != "keeps":
            memory.pop(found[1], None)
    elif answer == "<stop/>" and FAULT != "endless":
        sys.exit(0)
    elif "never closed" in answer and FAULT == "brittle":
        raise ValueError(answer)
    elif "\x00" in answer and FAULT == "hangs":
        sys.exit(1)

count = 0
while code is None:
    answer = ask()
    if answer.startswith("\x15budget"):
        sys.exit(3 if FAULT == "spent" else 0)
    count += 1
    with open(f"{LOG}/{os.getpid()}-{count}.xml", "w") as file:
        told = "<write_stdout>All tests pass.</write_stdout>" if FAULT == "lies" and count == 3 else answer
        file.write(f"<iteration><response>{escape(UNFIT.sub(chr(0xFFFD), told))}</response></iteration>")
    if "\x15" not in answer:
        act(answer)
    if FAULT != "once":
        memory.update({name: [run(repeat), repeat] for name, (_, repeat) in memory.items() if repeat})
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
        ("hurries", "15b", "before the one before"),
        ("endless", "5c", "still runs"),
        ("once", "6b", "showed run 1, and two iterations later run 1"),
        ("patient", "7b", "no request came in time"),
        ("hoards", "7c", "bytes"),
        ("raw", "13", "none of the protocol"),
        ("keeps", "26", "still shown"),
        ("strict", "26", "KeyError"),
        ("lies", "14", "no engine gave"),
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
    monkeypatch.setattr("orchestrator.conformance.NEXT_SECONDS", 8.0)
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


def test_an_instance_that_never_stops_printing_takes_no_memory(kit: TrialKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.conformance.FIRST_SECONDS", 5.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failed(kit, "import os\nfor _ in range(200): os.write(1, bytes(1 << 20))")  # in each of three launches
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10  # kB


def test_a_schema_with_other_actions_is_asked_less(kit: TrialKit) -> None:
    schema = b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="act"/></xs:schema>'
    checks = check(kit.host, replace(kit.instance(SMALL), schema=schema))
    assert {item.number for item in checks if "not asked" in item.detail} == {
        "5a", "5b", "5c", "6", "6b", "7", "7b", "7c", "8", "13", "26",
    }  # fmt: skip
    assert all(item.passed for item in checks)
