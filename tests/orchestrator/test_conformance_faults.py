"""Each way of breaking the contract is named. Rights make no difference to that, so one mode is enough."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import replace

import pytest

from orchestrator.conformance import TITLES, check, not_asked
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import TrialKit

environments, kit = trial_kit.environments, trial_kit.kit


@pytest.fixture
def mode() -> str:
    """The rights at hand."""
    return "user" if os.geteuid() else "root"


# A whole instance in one page, without a line of the standard agent. FAULTS names the promises that it breaks.
SMALL = r"""
import json, os, re, shutil, signal, socket, subprocess, sys, time
from html import escape, unescape

FAULTS = "none".split()
STATE, LOG = "/root/data/state/small.json", "/root/data/iterations"
UNFIT = re.compile("[\\x00-\\x08\\x0b-\\x1f\\ud800-\\udfff\\ufffe\\uffff]")
SCRIPT = re.compile(r"<(single|repeat)((?: \w+=\"[^\"]*\")*)>(<!\[CDATA\[.*\]\]>|[^<]*)</\1>", re.DOTALL)
line = socket.socket(fileno=int(os.environ["SIA_ENGINE_FD"]))
code = None

def asked(signum, frame):
    global code
    code = 42 if signum == signal.SIGUSR1 else 0

signal.signal(signal.SIGUSR1, signal.SIG_IGN if "deaf" in FAULTS else asked)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stays" in FAULTS else asked)
again = os.path.exists(STATE)
memory = json.load(open(STATE)) if again and "forgets" not in FAULTS else {}
number = max(map(int, memory), default=0)
if "tidies" in FAULTS and again:
    shutil.rmtree("/root/data/user")

def add(text, repeat=""):
    global number
    number += 1
    memory[str(number)] = [text, repeat]

def ask():
    entries = "".join(f'<entry id="{name}">{escape(text)}</entry>' for name, (text, _) in memory.items())
    context = f"<context>{entries}</context>"
    body = f"<system>small</system><schema>x</schema><context>{escape(context)}</context>"
    request = "<infer_xml>" + ("<junk" if "babble" in FAULTS else body) + "</infer_xml>"
    if "hurries" in FAULTS:
        request = "<token_limit/>\x04" + request
    line.sendall(request.encode("utf-8", "surrogatepass") + b"\x04")
    if "impatient" in FAULTS:
        time.sleep(0.02)
        line.sendall(b"<token_limit/>\x04")
    replies = []
    rest = b""
    while len(replies) < (2 if {"hurries", "impatient"} & set(FAULTS) else 1):
        data = line.recv(65536)
        if not data:
            sys.exit(9)
        *whole, rest = (rest + data).split(b"\x04")
        replies += whole
    return context, replies[0 if "impatient" in FAULTS else -1].decode("utf-8", "replace")

def start(script, name):
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SIA_ENGINE_FD")}
    out = open(f"/tmp/out{name}", "wb+")
    return out, subprocess.Popen(
        ["sh", "-c", script], stdout=out, stdin=subprocess.DEVNULL, start_new_session=True,
        cwd="/tmp" if "elsewhere" in FAULTS else None, env=None if "leaks" in FAULTS else kept,
    )

def finish(out, process, timeout=60.0, limit=20000):
    try:
        process.wait(None if "patient" in FAULTS else timeout)
    except subprocess.TimeoutExpired:
        if "orphans" in FAULTS:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with out:
        out.seek(0)
        text = out.read(-1).decode("utf-8", "surrogateescape")
    if "generous" in FAULTS:
        limit = 20000
    if len(text) > limit and "hoards" not in FAULTS:
        named = "" if "quiet" in FAULTS else f"[{len(text) - limit} left out]"
        text = text[:limit] + named if "heads" in FAULTS else text[:limit // 2] + named + text[-(limit // 2):]
    return text if "raw" in FAULTS else UNFIT.sub("?", text)

def run(script, timeout=60.0, limit=20000):
    return finish(*start(script, ""), timeout, limit)

def refuse(answer):
    if "terse" in FAULTS:  # no fault: it shows its latest trouble alone, and always in the same words
        memory["0"] = ["That is no action.", ""]
        return
    if answer.startswith("<delete"):
        silent = "mumbles"
    else:
        silent = "shrugs" if answer == "<single>never closed" else "swallows"
    if silent not in FAULTS and ("obeys" not in FAULTS or "stdout" not in answer):
        add("That is no action: " + UNFIT.sub("?", answer[:100]))

def act(answer):
    memory.pop("0", None)
    found = SCRIPT.fullmatch(answer)
    if "obeys" in FAULTS and not found:
        found = SCRIPT.fullmatch(re.sub("<stdout>.*</stdout>", "", answer))
    if found and "NaN" in answer and "unending" not in FAULTS:
        refuse(answer)
    elif answer.startswith("<read_stdin"):
        add("nothing" if "ignores" in FAULTS else os.read(0, 65536).decode())
    elif written := re.fullmatch("<write_stdout>(.*)</write_stdout>", answer):
        os.write(1, written[1].encode("latin-1", "replace") if "latin" in FAULTS else written[1].encode())
    elif found:
        script = found[3].removeprefix("<![CDATA[").removesuffix("]]>") if "CDATA" in answer else unescape(found[3])
        limits = {name: float(value) for name, value in re.findall('(\\w+)="(.*?)"', found[2])}
        timeout, limit = limits.get("timeout", 60.0), int(limits.get("limit", 20000))
        add(run(script, None if timeout != timeout else timeout, limit), script if found[1] == "repeat" else "")
        if "twice" in FAULTS and found[1] == "single":
            run(script, timeout, limit)
        if "waits" in FAULTS and script.endswith("&"):
            time.sleep(2)
    elif found := re.fullmatch('<delete id="(.*)"/>', answer):
        if "strict" in FAULTS:
            del memory[found[1]]
        elif found[1] not in memory:
            refuse(answer)
        elif "keeps" not in FAULTS:
            del memory[found[1]]
    elif answer == "<stop/>" and "endless" not in FAULTS:
        sys.exit(0)
    elif "never closed" in answer and "brittle" in FAULTS:
        raise ValueError(answer)
    elif "\x00" in answer and "hangs" in FAULTS:
        sys.exit(1)
    elif found := re.fullmatch("<reasoning>([^<&]*)</reasoning>", answer):
        add(found[1])
    else:
        refuse(answer)

def log(context, answer):
    told = "<write_stdout>All tests pass.</write_stdout>" if "lies" in FAULTS and count == 3 else answer
    for name in ("prompt", "schema"):
        open(f"{LOG}/{name}-0a1b", "w").close()
    head = "<iteration>" if "bare" in FAULTS else '<iteration system_prompt_hash="0a1b" action_schema_hash="0a1b">'
    with open(f"{LOG}/{os.getpid()}-{count}.xml", "w", errors="replace") as file:
        file.write(f"{head}{context}<response>{escape(UNFIT.sub(chr(0xFFFD), told))}</response></iteration>")

count = 0
while code is None:
    context, answer = ask()
    if answer.startswith("\x15budget"):
        sys.exit(3 if "spent" in FAULTS else 0)
    if answer.startswith("\x15") and "fragile" in FAULTS:
        sys.exit(1)
    if answer.startswith("\x15too_long"):
        sys.exit(75)
    count += 1
    if "brief" in FAULTS:
        memory = {name: entry for name, entry in memory.items() if entry[1]}
    if "late" not in FAULTS:
        log(context, answer)
    if "\x15" not in answer:
        act(answer)
    if "late" in FAULTS:
        log(context, answer)
    repeats = {name: repeat for name, (_, repeat) in memory.items() if repeat and "once" not in FAULTS}
    if "lonely" in FAULTS:
        memory.update({name: [run(repeat), repeat] for name, repeat in repeats.items()})
    started = {name: start(repeat, name) for name, repeat in repeats.items() if "lonely" not in FAULTS}
    memory.update({name: [finish(*job), repeats[name]] for name, job in started.items()})
    with open(STATE, "w") as file:
        json.dump(memory, file)
sys.exit(code)
"""


def failed(kit: TrialKit, program: str) -> dict[str, str]:
    """Number → detail of the checks that a program fails."""
    return {item.number: item.detail for item in check(kit.host, kit.instance(program)) if not item.passed}


def test_any_program_can_keep_it(kit: TrialKit) -> None:
    """However its schema is written, it is asked everything: what is left out would be passed unseen."""
    build = kit.instance(SMALL)
    schema = re.sub(rb'<xs:element name="(\w+)" type="(\S+)"/>', rb"<xs:element type='\2' name = '\1'/>", build.schema)
    assert schema.count(b"name = 'single'") == 1
    checks = check(kit.host, replace(build, schema=schema))
    assert [item for item in checks if not item.passed or not item.asked] == []
    assert not_asked(checks) == ""


def test_nothing_tells_of_the_check(kit: TrialKit) -> None:
    """The supervisor listens here as in every other launch: an instance that looks for that finds no difference.
    And how an agent tells of trouble is its own business."""
    looks = """
import socket
supervisor = socket.socket(socket.AF_UNIX)
supervisor.connect("/run/sia/supervisor.sock")
supervisor.sendall(b"<status/>\\x04")
assert supervisor.recv(1000).startswith(b"The supervisor runs.")
supervisor.close()
"""
    assert failed(kit, looks + SMALL.replace('"none"', '"terse"')) == {}
    assert not list(kit.home.run.glob("s-*"))


# By fault: the number of the check that names it, and words of what it says. Faults stand together where none of them
# keeps the check from seeing the others.
BROKEN: tuple[dict[str, tuple[str, str]], ...] = (
    {
        "ignores": ("5a", "not in the prompt"),
        "twice": ("6", "has run again"),
        "heads": ("7d", "the first or the last line"),
        "leaks": ("8b", "inherits"),
        "shrugs": ("10", "nothing in the next prompt"),
        "lies": ("14", "no engine gave"),
    },
    {
        "latin": ("5b", "standard output holds"),
        "quiet": ("7c", "nothing in the prompt says"),
        "tidies": ("8", "gone after a restart"),
        "swallows": ("12", "nothing in the next prompt"),
        "late": ("14b", "before its answer was logged"),
    },
    {
        "once": ("6b", "showed run 1, and two iterations later run 1"),
        "generous": ("7c", "with limit=600, 5,000 of 5,000"),
        "unending": ("11", "a script ran although"),
        "bare": ("14b", "is not <iteration system_prompt_hash= action_schema_hash=>"),
        "mumbles": ("26", "no such entry"),
        "forgets": ("35", "before the restart"),
    },
    {
        "elsewhere": ("6", "script's output"),
        "lonely": ("6b", "have not run side by side"),
        "orphans": ("7b", "a child of the script lives on"),
        "fragile": ("19c", "after the error 'engine': it ended with exit code 1"),
        "obeys": ("11", "a script ran although"),
        "keeps": ("26", "still shown"),
    },
    {
        "endless": ("5c", "still runs"),
        "waits": ("7", "came after 2 s"),
        "spent": ("19b", "exit code 3"),
        "stays": ("34b", "still running"),
    },
    {"brief": ("6", "is gone that was not deleted")},
    {"patient": ("7b", "no request came in time")},
    {"hoards": ("7c", "bytes")},
    {"brittle": ("10", "ValueError")},
    {"hangs": ("12", "exit code 1")},
    {"raw": ("13", "none of the protocol")},
    {"babble": ("15", "not well-formed")},
    {"hurries": ("15b", "before the one before")},
    {"impatient": ("15b", "before the one before")},
    {"strict": ("26", "KeyError")},
    {"deaf": ("34a", "still runs")},
)


@pytest.mark.parametrize("faults", BROKEN, ids="-".join)
def test_each_broken_promise_is_named(
    kit: TrialKit, monkeypatch: pytest.MonkeyPatch, faults: dict[str, tuple[str, str]]
) -> None:
    monkeypatch.setattr("orchestrator.conformance.BACKGROUND_SECONDS", 1.5)
    monkeypatch.setattr("orchestrator.conformance_run.NEXT_SECONDS", 8.0)
    monkeypatch.setattr("orchestrator.conformance_scripts.MEETING", 1.0)
    monkeypatch.setattr("orchestrator.conformance.END_SECONDS", 2.0)
    found = failed(kit, SMALL.replace('"none"', f'"{" ".join(faults)}"'))
    for number, words in faults.values():
        assert words in found.get(number, ""), (number, found)


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
    assert {item.number for item in checks if not item.asked} == {
        "5a", "5b", "5c", "6", "6b", "7", "7b", "7c", "7d", "8", "8b", "11", "13", "26",
    }  # fmt: skip
    assert all(item.passed for item in checks)
    assert not_asked(checks).startswith("5a: its schema has no <read_stdin>; 5b: its schema has no <write_stdout>; 5c:")
