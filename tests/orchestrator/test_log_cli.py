"""`sia log` over real journals, as a person calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.exchanges import ExchangeStore
from orchestrator.journal import Asked, Exchange, Journal
from orchestrator.log_archive import pack
from orchestrator.own_logs import kept_logs
from orchestrator.protocol import EngineUsage

Sia = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sia:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.delenv("SIA_HOME", raising=False)

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "orchestrator", "log", *arguments]
        return subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    return call


def write(top: Path, name: str, answers: list[str], kind: str = "trial") -> None:
    store = ExchangeStore(top / ".sia" / "exchanges", top / ".sia" / "sia.db")
    journal = Journal.create(
        store, name, {"kind": kind, "campaign": "c1", "arm": "better", "task": "sum\x1b[31m", "commit": "abc"}
    )
    entries = ""
    for n, answer in enumerate(answers, 1):
        context = f'<context time="{n}{name}">{entries}\n</context>'
        asked = Asked(len(context), "00" * 32, system="Work.", schema="<xsd/>", context=context, seed=n)
        usage = EngineUsage(100, 10, 0, 0.5)
        journal.append(Exchange(n, 1e9 + n, "infer", asked, answer, 0.01, usage=usage))
        entries += f'\n<single id="e{n}"><![CDATA[{answer}]]></single>'
    journal.append(Exchange(len(answers) + 1, 1e9, "count", Asked(1, "00" * 32), "12", 0.0))
    journal.seal()
    store.close()


def test_show_lists_and_shows_one(tmp_path: Path, sia: Sia) -> None:
    write(tmp_path, "c1-t1", ["<read_stdin/>", "<single>\x1b]0;evil\x07ls</single>", "<stop/>"])
    listed = sia("show", "c1-t")
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[:2] for line in listed.stdout.splitlines()] == [["1", "infer"], ["2", "infer"], ["3", "infer"]]
    assert "\x1b" not in listed.stdout + listed.stderr and "evil" not in listed.stdout
    assert "arm better" in listed.stderr
    one = sia("show", "c1-t1", "2").stdout
    assert (
        one.startswith('<iteration system_prompt_hash="')
        and "<response>&lt;single&gt;ls&lt;/single&gt;</response>" in one
    )
    assert '<single id="e1"><![CDATA[<read_stdin/>]]></single>' in one
    assert len(sia("show", "c1-t1", "--all").stdout.splitlines()) == 4
    data = json.loads(sia("show", "c1-t1", "--json").stdout)
    assert (data["journal"], len(data["exchanges"])) == ("c1-t1", 3)
    assert json.loads(sia("show", "c1-t1", "2", "--json").stdout)["reply"].startswith("<single>\x1b]0;")


def test_the_own_log_of_an_agent_byte_for_byte(tmp_path: Path, sia: Sia) -> None:
    write(tmp_path, "c1-t1", ["<stop/>"])
    write(tmp_path, "n1", ["<stop/>"], "main")
    missing = sia("show", "c1-t1", "--own")
    assert missing.returncode != 0 and "no log of its own" in missing.stderr
    directory = tmp_path / ".sia" / "campaigns" / "c1" / "trials" / "c1-t1"
    directory.mkdir(parents=True)
    plain = "<iteration>\x1b[31m ‹U+001B› ü\r\n</iteration>\n\n".encode()
    pack([("00000001.xml", plain), ("texts/x\x1b", b"prompt")], kept_logs(directory))
    assert sia("show", "c1-t1", "--own").stdout.splitlines()[0] == "00000001.xml"
    argv = [sys.executable, "-m", "orchestrator", "log", "show", "c1-t1", "1", "--own"]
    assert subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=60, check=True).stdout == plain
    assert "no own log of iteration 2" in sia("show", "c1-t1", "2", "--own").stderr
    assert "/root/data/iterations" in sia("show", "main", "--own").stderr


def test_names_are_found(tmp_path: Path, sia: Sia) -> None:
    for name, kind in (("aa", "trial"), ("ab", "trial"), ("ab", "trial"), ("nonce-1", "main"), ("nonce-2", "main")):
        write(tmp_path, name, ["<stop/>"], kind)
    shown = {
        name: json.loads(sia("show", name, "--json").stdout)["journal"]
        for name in ("aa", "ab", "ab~1", "main", "nonce-1")
    }
    assert shown == {"aa": "aa", "ab": "ab~2", "ab~1": "ab", "main": "nonce-2", "nonce-1": "nonce-1"}
    assert "no journal 'ab~3'" in sia("show", "ab~3").stderr
    vague, missing, beyond = sia("show", "a"), sia("show", "zz"), sia("show", "aa", "9")
    assert [one.returncode for one in (vague, missing, beyond)] == [2, 2, 2]
    assert "'a' could be aa, ab" in vague.stderr
    assert "no journal 'zz'" in missing.stderr and "fix:" in missing.stderr
    assert "aa has no exchange 9" in beyond.stderr


def test_diff_shows_where_two_trials_part(tmp_path: Path, sia: Sia) -> None:
    write(tmp_path, "left", ["<read_stdin/>", "<single>ls</single>", "<single>cat a</single>", "<stop/>"])
    write(tmp_path, "right", ["<read_stdin/>", "<single>ls -l</single>", "<stop/>"])
    done = sia("diff", "left", "right")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("- left: arm better") and "4 iterations, 440 tokens" in lines[0]
    assert lines[2:8] == [
        "  1: 1 equal",
        "- 2: <single>ls</single>",
        "- 3: <single>cat a</single>",
        "+ 2: <single>ls -l</single>",
        "  4: 1 equal",
        "",
    ]
    assert lines[-1] == "the same"  # metrics in the root aside
    runs = json.loads(sia("diff", "left", "right", "--json").stdout)["runs"]
    assert [run["kind"] for run in runs] == ["same", "left", "right", "same"]


def test_verify_finds_an_alteration(tmp_path: Path, sia: Sia) -> None:
    assert "no journals yet" in sia("verify").stderr
    write(tmp_path, "good", ["<stop/>"])
    write(tmp_path, "bad", ["<read_stdin/>"])
    assert sia("verify").returncode == 0
    store = ExchangeStore(tmp_path / ".sia" / "exchanges", tmp_path / ".sia" / "sia.db")
    store._connection.execute("DELETE FROM entry WHERE journal = 'bad' AND n = 1")
    store.close()
    done = sia("verify")
    assert done.returncode == 1
    assert "good: ok (2 entries, sealed)" in done.stdout
    assert "bad: FAULT: entry 1 is missing" in done.stdout
    assert sia("verify", "good").returncode == 0
    assert json.loads(sia("verify", "bad", "--json").stdout)[0]["problem"] == "entry 1 is missing"


def test_export_is_a_trajectory(tmp_path: Path, sia: Sia) -> None:
    write(tmp_path, "t", ["<reasoning>think</reasoning>", '<single timeout="5">ls</single>', "no xml", "<stop/>"])
    trajectory = json.loads(sia("export", "t").stdout)
    assert trajectory["schema_version"] == "ATIF-v1.4"
    steps = trajectory["steps"]
    assert [step["step_id"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [step["source"] for step in steps] == ["system", "user", "agent", "agent", "agent", "agent"]
    assert steps[2]["reasoning_content"] == "think"
    (call,) = steps[3]["tool_calls"]
    assert (call["function_name"], call["arguments"]) == ("single", {"timeout": "5", "text": "ls"})
    (result,) = steps[3]["observation"]["results"]
    assert (
        result["source_call_id"] == call["tool_call_id"]
        and 'id="e2"' in result["content"]
        and 'id="e1"' not in result["content"]
    )
    assert "tool_calls" not in steps[4]
    assert trajectory["final_metrics"] == {
        "total_prompt_tokens": 400,
        "total_completion_tokens": 40,
        "total_cached_tokens": 0,
        "total_steps": 6,
        "total_cost_usd": 2.0,
    }
    target = tmp_path / "out.json"
    assert sia("export", "t", "-o", str(target)).returncode == 0
    assert json.loads(target.read_text()) == trajectory
    assert sia("export", "t", "-o", str(tmp_path / "no" / "out.json")).returncode == 2
