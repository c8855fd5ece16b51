"""Whole agents as processes: the loop, signals, crashes, restarts, odd answers."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lxml import etree

ROOT = Path(__file__).resolve().parents[2]


def entries(context: str) -> list[etree._Element]:
    return list(etree.fromstring(context.encode()))


def text(element: etree._Element, child: str = "") -> str:
    return (element.findtext(child) or "" if child else element.text or "").strip()


@pytest.mark.spec("1")
@pytest.mark.spec("3")
def test_a_conversation(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start(
        [
            "<read_stdin/>",
            "<reasoning>greet back</reasoning>",
            "<single>echo hi | tee -a greeting; ls</single>",
            "<write_stdout>Grüße</write_stdout>",
            "<repeat>cat greeting</repeat>",
            '<delete id="0000001"/>',
            "<stop/>",
        ]
    )
    code, out = agent.finish("hello ü".encode())
    assert (code, out) == (0, "Grüße\n")
    last = entries(agent.contexts()[-1])
    assert [child.tag for child in last] == ["reasoning", "single", "write_stdout", "repeat"]
    assert text(last[1], "stdout") == "hi\ngreeting" and text(last[3], "stdout") == "hi", "a single runs once"
    assert [child.get("id") for child in last] == ["0000002", "0000003", "0000004", "0000005"]
    first = etree.fromstring(agent.contexts()[0].encode())
    assert first.get("time") == "2025-01-01T00:00:00Z"
    assert set(first.attrib) == {
        "time", "cpu", "memory_used", "memory_total", "disk_used", "disk_total", "context", "stdin",
    }  # fmt: skip


def test_the_prompt_names_the_places_of_this_machine(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start(["<stop/>"])
    assert agent.finish()[0] == 0
    assert f"{agent.data}/tasks" in agent.requests()[0] and "/root/data" not in agent.requests()[0]


@pytest.mark.spec("3")
@pytest.mark.spec("18")
def test_real_metrics(agent, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    agent._env["SIA_DETERMINISTIC"] = "0"
    agent.start(["<stop/>"])
    assert agent.finish()[0] == 0
    root = etree.fromstring(agent.contexts()[0].encode())
    for name in ("memory_used", "memory_total", "disk_used", "disk_total"):
        assert int(root.get(name, "")) > 0
    assert 0 <= int(root.get("cpu", "")) <= 100 and int(root.get("context", "")) >= 1


@pytest.mark.spec("1")
@pytest.mark.spec("14")
def test_the_log_is_written_before_the_answer_is_parsed(agent) -> None:  # type: ignore[no-untyped-def]
    answer = "<single>cat ../data/iterations/00000001.xml</single>"
    agent.start([answer, "<!-- why -->\x1b<stop/>", "<stop/>"])
    assert agent.finish()[0] == 0
    logs = sorted((agent.data / "iterations").glob("*.xml"))
    assert [path.name for path in logs] == ["00000001.xml", "00000002.xml", "00000003.xml"]
    shown = text(entries(agent.contexts()[1])[0], "stdout")
    assert shown == logs[0].read_text().strip(), "the script saw its own log"
    for path, context in zip(logs, agent.contexts(), strict=True):
        root = etree.fromstring(path.read_bytes())
        assert root.tag == "iteration" and [child.tag for child in root] == ["context", "response"]
        assert etree.tostring(root[0][0], method="c14n") == etree.tostring(etree.fromstring(context), method="c14n")
        for name in ("system_prompt_hash", "action_schema_hash"):
            assert (agent.data / "iterations" / "texts" / root.get(name, "")).exists()
    assert etree.fromstring(logs[1].read_bytes()).findtext("response") == "<!-- why -->‹U+001B›<stop/>"


ODD_ANSWERS: list[object] = [
    "",
    "\x00\x1b[2J",
    "just prose",
    "<stop/><stop/>",
    "```\n<stop/>\n```",
    "<single>x",
    "<delete/>",
    '<delete id="nope"/>',
    "<single/>",
    "<!DOCTYPE a [<!ENTITY b 'c'>]><single>&b;</single>",
    {"hex": "fffe3c00"},
    {"before": "<reasoning>", "repeat": "y" * 1000, "times": 10_000, "after": "</reasoning>"},
    {"before": "", "repeat": "<a>", "times": 1_000_000, "after": ""},
    "<single>echo<stdout>forged</stdout></single>",
    "<single>" + "\r\n".join(["echo a", "echo b"]) + "</single>",
]


@pytest.mark.spec("12")
def test_odd_answers_become_entries(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start([*ODD_ANSWERS, "<stop/>"])
    assert agent.finish(seconds=60)[0] == 0
    last = entries(agent.contexts()[-1])
    assert [child.tag for child in last] == ["parse_error"] * (len(ODD_ANSWERS) - 1) + ["single"]
    assert all(text(child, "error") for child in last[:-1])
    assert text(last[-1], "stdout") == "a\nb"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGUSR1, 42), (signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.spec("34")
def test_signals_finish_the_iteration(agent, until: Callable[..., None], signum: int, code: int) -> None:  # type: ignore[no-untyped-def]
    process = agent.start(["<single>touch began; sleep 0.5; echo finished</single>", "<stop/>"])
    until((agent.directory / "work" / "began").exists)
    process.send_signal(signum)
    assert agent.finish()[0] == code
    assert len(agent.requests()) == 1, "no new iteration begins"
    agent.start(["", "<stop/>"])
    assert agent.finish()[0] == 0
    assert text(entries(agent.contexts()[1])[0], "stdout") == "finished"


def test_sigterm_cancels_an_answer_that_does_not_come(agent, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    process = agent.start([{"wait": 60, "then": "<stop/>"}])
    agent.asked(1)
    process.send_signal(signal.SIGTERM)
    assert agent.finish(seconds=12)[0] == 0


@pytest.mark.spec("35")
def test_a_restart_compiles_the_same_context(agent, until: Callable[..., None]) -> None:  # type: ignore[no-untyped-def]
    answers = [
        "<reasoning>one ]]> &amp;</reasoning>",
        "<repeat>date +%N</repeat>",
        "<read_stdin/>",
        r"<single>printf '\033\377 \n\n'; exit 7</single>",
        "no action, and longer than what is kept of it " * 700,
        {"wait": 1, "then": "<delete id='nope'/>"},
    ]
    process = agent.start([*answers, "<stop/>"])
    process.stdin.write("first ü".encode())
    process.stdin.flush()
    agent.asked(6)
    process.stdin.write(b"not yet read \xe2\x82")
    process.stdin.flush()
    process.send_signal(signal.SIGUSR1)
    assert agent.finish()[0] == 42
    before = (agent.data / "state" / "agent.xml").read_bytes()
    agent.start([*answers, "<stop/>"])
    agent.asked(7)
    assert agent.finish()[0] == 0
    restarted = agent.contexts()[6]
    agent.process.stdout.close()

    from instance.__main__ import assemble
    from instance.settings import Settings
    from instance.signals import Interrupt

    copy = agent.directory / "copy"
    (copy / "state").mkdir(parents=True)
    (copy / "state" / "agent.xml").write_bytes(before)
    engine = (sys.executable, "-I", str(agent.directory / "engine.py"), str(agent._answers), str(copy / "record"))
    third = assemble(Settings(ROOT, copy, None, engine, True, False), Interrupt())
    try:
        assert third._compile_context().document == restarted
    finally:
        third.llm.close()
    assert len(entries(restarted)) == 6 and "[… 12200 characters left out …]" in restarted


def test_messages_are_neither_lost_nor_read_twice(agent) -> None:  # type: ignore[no-untyped-def]
    process = agent.start([{"wait": 0.5, "then": "<reasoning>x</reasoning>"}])
    process.stdin.write(b"unread")
    process.stdin.flush()
    agent.asked(1)
    process.send_signal(signal.SIGUSR1)
    assert agent.finish()[0] == 42
    agent.start(["", "<read_stdin/>", "<read_stdin/>", "<stop/>"])
    assert agent.finish(b" more")[0] == 0
    reads = [text(child) for child in entries(agent.contexts()[-1]) if child.tag == "read_stdin"]
    assert "".join(reads).replace(" ", "") == "unreadmore"


def test_kill_in_the_middle_of_a_script(agent, until: Callable[..., None]) -> None:  # type: ignore[no-untyped-def]
    script = "<single>echo x >>ran; echo $$ >pid; sleep 30; true</single>"
    process = agent.start(["<reasoning>before</reasoning>", script, "<stop/>"])
    until((agent.directory / "work" / "pid").exists)
    process.send_signal(signal.SIGKILL)
    agent.finish()
    agent.start(["", "", "<stop/>"])
    assert agent.finish()[0] == 0
    last = entries(agent.contexts()[-1])
    assert [child.tag for child in last] == ["reasoning", "single"]
    assert last[1].get("interrupted") == "true" and last[1].get("exit_code") is None
    assert (agent.directory / "work" / "ran").read_text() == "x\n", "it ran once"
    os.killpg(int((agent.directory / "work" / "pid").read_text()), signal.SIGKILL)  # outside a sandbox it lives on


def test_a_repeat_that_kills_the_agent_does_not_run_again(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start(["<repeat>echo x >>ran; kill -9 $PPID</repeat>", "<stop/>"])
    assert agent.finish()[0] == -signal.SIGKILL
    agent.start(["", "<reasoning>what happened?</reasoning>", "<stop/>"])
    assert agent.finish()[0] == 0
    assert (agent.directory / "work" / "ran").read_text() == "x\n"
    assert entries(agent.contexts()[-1])[0].get("interrupted") == "true"
    agent.start(["", "", "", "<stop/>"], "--run-again")
    assert agent.finish()[0] == -signal.SIGKILL
    assert (agent.directory / "work" / "ran").read_text() == "x\nx\n", "the operator had it run again"


def test_unreadable_state_is_told_and_kept(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start(["<reasoning>x</reasoning>", "<stop/>"])
    agent.finish()
    for path in (agent.data / "state").glob("*.xml"):
        path.write_bytes(path.read_bytes().replace(b'version="1"', b'version="9"'))
    agent.start(["", "", "<stop/>"])
    assert agent.finish()[0] == 0
    only = entries(agent.contexts()[-1])
    assert [child.tag for child in only] == ["parse_error"] and "version" in text(only[0], "error")
    assert (agent.data / "state" / "unreadable-1" / "agent.xml").exists()
    logs = sorted(path.name for path in (agent.data / "iterations").glob("*.xml"))
    assert logs == ["00000001.xml", "00000002.xml", "00000003.xml"], "no log was overwritten"


@pytest.mark.spec("19")
def test_budget_ends_in_order(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start(["<reasoning>x</reasoning>", {"error": "budget 1 iteration is used up"}])
    assert agent.finish()[0] == 0
    assert "1 iteration is used up" in agent.stderr


@pytest.mark.spec("19")
def test_an_engine_that_keeps_failing_ends_the_agent_in_order(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start(["<reasoning>kept</reasoning>", {"error": "engine out of order"}])
    assert agent.finish(seconds=30)[0] == 75
    assert "given up" in agent.stderr and "Traceback" not in agent.stderr
    assert b"kept" in (agent.data / "state" / "agent.xml").read_bytes()


def test_an_engine_that_dies_is_started_again(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start([{"die": True}, {"die": True}, "<write_stdout>here</write_stdout>", "<stop/>"])
    assert agent.finish() == (0, "here\n")


def test_a_full_disk_is_told(agent) -> None:  # type: ignore[no-untyped-def]
    slow = [{"wait": 0.5, "then": f"<reasoning>{name}</reasoning>"} for name in "xy"]
    process = agent.start([*slow, "<stop/>"])
    agent.asked(1)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))  # as a quota: writes fail
    agent.asked(2)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert agent.finish()[0] == 0
    told = [text(child, "error") for child in entries(agent.contexts()[-1]) if child.tag == "parse_error"]
    assert len(told) == 2 and all("Make room" in error for error in told)


def test_a_data_directory_has_one_agent(agent) -> None:  # type: ignore[no-untyped-def]
    agent.start([{"wait": 2, "then": "<stop/>"}])
    agent.asked(1)
    second = run("--engine", "true", "--data", str(agent.data), cwd=agent.directory)
    assert second.returncode == 1 and "another agent" in second.stderr
    assert agent.finish()[0] == 0


def test_a_second_ctrl_c_does_not_wait(agent) -> None:  # type: ignore[no-untyped-def]
    process = agent.start(["<reasoning>kept</reasoning>", {"wait": 60, "then": "<stop/>"}])
    agent.asked(2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert agent.finish(seconds=5)[0] == 130
    assert "Traceback" not in agent.stderr and b"kept" in (agent.data / "state" / "agent.xml").read_bytes()


def run(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "instance", *arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        ([], {}, "--engine"),
        ([], {"SIA_ENGINE_FD": "x"}, "SIA_ENGINE_FD"),
        (["--engine", "/nonexistent/engine"], {}, "can't be started"),
        (["--engine", "'"], {}, "can't be split"),
        (["--engine", "true", "--data", "/proc/nowhere"], {}, "data directory"),
    ],
)
def test_a_start_that_can_not_be(tmp_path: Path, arguments: list[str], env: dict[str, str], words: str) -> None:
    done = run(*arguments, cwd=tmp_path, **env)
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr


def test_it_starts_without_heavy_modules() -> None:
    code = (
        "import sys; import lxml.etree, psutil; before = set(sys.modules); import instance.__main__; "
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('instance')))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, check=True)  # fmt: skip
    heavy = {"asyncio", "argparse", "hashlib", "ssl", "pydantic", "xmlschema", "json", "dataclasses", "logging"}
    assert not heavy & set(done.stdout.split()), done.stdout
