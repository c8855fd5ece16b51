"""The openai engine: against llama.cpp's own server with a real model, and against one that answers as it is told."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from orchestrator.engines import models
from orchestrator.engines.host import EngineHost
from orchestrator.errors import ConfigError
from orchestrator.protocol import Request
from tests.orchestrator.engines.openai.chat_kit import ROOT, SCHEMA, USAGE, Chat, answer, ask, engine, infer, model

VALIDATOR = etree.XMLSchema(etree.fromstring(SCHEMA.encode()))
OTHER = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:element name="stop"><xs:complexType/></xs:element></xs:schema>"""
MODEL = models.directory() / models.KNOWN["smollm2"].file

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="the extra 'openai' is not installed"),
    pytest.mark.timeout(300),
]


def valid(answer: str) -> bool:
    return bool(VALIDATOR.validate(etree.fromstring(answer)))


def test_an_answer_is_asked_for_again_until_it_is_valid(tmp_path: Path) -> None:
    answers = iter(["I would look around.", "```xml\n<delete/>\n```", "Sure:\n```xml\n<single>ls</single>\n```\n"])
    with engine(tmp_path, lambda chat, _: chat.stream(next(answers), usage=USAGE)) as (host, asked):
        text, usage, error = ask(host, infer())
    assert (text, error) == ("<single>ls</single>", None)
    assert (usage.prompt, usage.completion, usage.cached, usage.cost) == (300, 30, 180, None)
    assert len(asked) == 3
    assert "is not valid" in asked[1]["messages"][-1]["content"]
    assert "required" in asked[2]["messages"][-1]["content"]
    assert "grammar" not in asked[0]


def test_after_all_attempts_the_agent_sees_what_came(tmp_path: Path) -> None:
    with engine(tmp_path, lambda chat, _: chat.stream("No."), "--attempts", "2") as (host, asked):
        text, usage, error = ask(host, infer())
    assert (text, error, len(asked)) == ("No.", None, 2)
    assert usage.prompt is None


def test_a_prefix_that_is_written_again_is_not_given_twice() -> None:
    with model(lambda chat, _: chat.stream("<single>ls</single>")) as (chat_model, asked):
        text, _, _ = answer(chat_model, infer(prefix="<single>"))
    assert text == "ls</single>"
    assert "Begin your answer with exactly this" in asked[0]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("owner", "field"), [("llamacpp", "grammar"), ("vllm", "structured_outputs"), ("sglang", "ebnf")]
)
def test_grammars_go_to_servers_that_take_them(owner: str, field: str) -> None:
    behaviour = lambda chat, _: chat.stream("ls", "</sin", "gle>", usage=USAGE)  # noqa: E731
    with model(behaviour, owner=owner) as (chat_model, asked):
        text, _, error = answer(chat_model, infer(prefix="<single>"))
    assert (text, error) == ("ls</single>", None)
    assert "root ::= " in json.dumps(asked[0][field])
    assert asked[0]["messages"][-1] == {"role": "assistant", "content": "<single>"}


def test_a_server_that_ignores_grammars_is_checked_instead() -> None:
    def behaviour(chat: Chat, body: dict[str, Any]) -> None:
        chat.stream("Sure! <stop/>" if "structured_outputs" in body else "<stop/>", usage=USAGE)

    with model(behaviour, owner="vllm") as (chat_model, asked):
        text, first, _ = answer(chat_model, infer())
        again, second, _ = answer(chat_model, infer(schema=OTHER))
    assert text == again == "<stop/>"
    assert ["structured_outputs" in body for body in asked] == [True, True, False, False]
    assert first.unguided == second.unguided == "the server takes no grammars"
    assert (first.prompt or 0) > 200  # what was thrown away has been paid for: an estimate, the look at it, the answer
    assert (second.prompt, second.completion) == (100, 10)


def test_a_server_that_refuses_grammars_is_checked_instead() -> None:
    def behaviour(chat: Chat, body: dict[str, Any]) -> None:
        if "structured_outputs" in body:
            chat.fail(400, "unknown field structured_outputs")
        else:
            chat.stream("<stop/>", usage=USAGE)

    with model(behaviour, owner="vllm") as (chat_model, asked):
        text, usage, _ = answer(chat_model, infer())
        assert (text, usage.prompt, usage.unguided) == ("<stop/>", 100, "the server takes no grammars")
        assert len(asked) == 3
        answer(chat_model, infer(schema=OTHER))
        assert len(asked) == 4


def test_a_schema_that_a_server_refuses_leaves_others_guided() -> None:
    def behaviour(chat: Chat, body: dict[str, Any]) -> None:
        grammar = body.get("structured_outputs", {}).get("grammar", "")
        if len(grammar) > 2000:
            chat.fail(400, "the grammar is too complex")
        else:
            chat.stream("a" if grammar == 'root ::= "a"' else "<stop/>")

    with model(behaviour, owner="vllm") as (chat_model, asked):
        reasons = [answer(chat_model, infer(schema=schema))[1].unguided for schema in (SCHEMA, OTHER, SCHEMA)]
    assert reasons == ["the server refuses the grammar: status 400: the grammar is too complex", None, *reasons[:1]]
    assert ["structured_outputs" in body for body in asked] == [True, True, False, True, False]


def test_a_request_that_is_refused_anyway_says_nothing_about_grammars() -> None:
    broken = iter([True] * 3)

    def behaviour(chat: Chat, _: dict[str, Any]) -> None:
        if next(broken, False):
            chat.fail(400, "the model is being replaced")
        else:
            chat.stream("<stop/>")

    with model(behaviour, owner="vllm") as (chat_model, asked):
        assert answer(chat_model, infer())[2] == ("engine", "status 400: the model is being replaced")
        text, usage, _ = answer(chat_model, infer())
    assert (text, usage.unguided, "structured_outputs" in asked[-1]) == ("<stop/>", None, True)


def test_what_leaves_the_grammar_in_mid_answer_is_checked_the_next_time() -> None:
    with model(lambda chat, _: chat.stream("<stop/>", " Done."), owner="vllm") as (chat_model, asked):
        text, usage, error = answer(chat_model, infer())
        assert (text, error) == ("<stop/>", ("engine", "the server does not keep to the grammar"))
        assert usage.prompt and usage.completion
        assert answer(chat_model, infer())[1].unguided == "the server does not keep to the grammar"
        assert "structured_outputs" not in asked[-1]


def test_an_answer_that_was_cut_at_the_limit_is_ended() -> None:
    with model(lambda chat, _: chat.stream("<single>ls -", finish="length"), owner="llamacpp") as (chat_model, _):
        text, usage, _ = answer(chat_model, infer())
    assert text == "<single>ls -</single>"
    assert usage.finish == "length"


def test_an_answer_gets_the_room_that_the_prompt_leaves() -> None:
    """The prompt has 2,510 tokens. Where nobody counts them, they are estimated until the server has told some."""
    wanted = infer(context="word " * 1000, max_tokens=8192)
    with model(lambda chat, _: chat.stream("<stop/>"), owner="vllm", limit=4096) as (chat_model, asked):
        assert answer(chat_model, wanted)[0] == "<stop/>"
        assert answer(chat_model, infer(max_tokens=2048))[0] == "<stop/>"
    assert [body["max_tokens"] for body in asked] == [4096 - 2510 - 16, 2048]
    answers, told = iter(["No.", "<stop/>"]), {**USAGE, "prompt_tokens": 2510}
    with model(lambda chat, _: chat.stream(next(answers), usage=told), limit=4096) as (chat_model, asked):
        text, usage, error = answer(chat_model, wanted)
    assert (text, error, usage.prompt) == ("<stop/>", None, 5020)
    too_much, enough, again = (body["max_tokens"] for body in asked)
    assert too_much + 2510 > 4096
    assert enough == too_much // 4
    assert 1000 < again < 4096 - 2510


def test_a_prompt_without_room_is_too_long() -> None:
    nothing = lambda chat, _: chat.stream("<stop/>")  # noqa: E731
    with model(nothing, owner="vllm", limit=2048) as (chat_model, asked):
        _, _, error = answer(chat_model, infer(context="word " * 1000, max_tokens=8192))
    assert error is not None and error[0] == "too_long"
    assert [body["max_tokens"] for body in asked] == [1]


def test_prices() -> None:
    from orchestrator.engines.openai.server import price

    assert price("gpt-4o", None, 1000, 100, 500) == pytest.approx(0.002875)
    assert price("no-such-model", "http://127.0.0.1:1/v1", 1, 1, None) is None


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="the extra 'llama' is not installed")
@pytest.mark.skipif(not MODEL.exists(), reason="the model is not here: sia engines fetch smollm2")
def test_a_real_server_with_a_real_model(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(
        "import sys, time, xllamacpp\n"
        "p = xllamacpp.CommonParams()\n"
        "p.model.path, p.n_ctx, p.n_parallel, p.verbosity = sys.argv[1], 2048, 1, 0\n"
        "p.hostnames, p.port, p.api_keys = ['127.0.0.1'], int(sys.argv[2]), ['secret']\n"
        "server = xllamacpp.Server(p)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    import subprocess
    import sys

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, str(program), str(MODEL), str(port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            while server.stdout.readline().strip() != b"ready":
                assert server.poll() is None
            _converse(tmp_path, f"http://127.0.0.1:{port}/v1")
        finally:
            server.kill()


def _converse(tmp_path: Path, url: str) -> None:
    command = ["env", "LOCAL_KEY=secret", str(Path(__import__("sys").executable)), "-m", "orchestrator.engines.openai"]
    command += ["smollm2", "--url", url, "--key-variable", "LOCAL_KEY", "--temperature", "1"]
    with EngineHost("chat", command, ROOT, tmp_path / "log") as host:
        assert host.wait_ready() == 2048
        count, _, _ = ask(host, Request("token_count", "Act.", context="<context/>", seed=0))
        for seed, prefix in enumerate(["", "", "<single>", '<delete id="']):
            text, usage, error = ask(host, infer(seed=seed, prefix=prefix))
            assert error is None
            assert valid(prefix + text), text
            assert usage.cost is None
            assert usage.completion
        assert usage.cached
        assert int(count) > 5
        assert abs((ask(host, infer())[1].prompt or 0) - int(count)) <= 2
        assert ask(host, infer(context="word " * 4000))[2][0] == "too_long"  # type: ignore[index]
    command[1] = "LOCAL_KEY=wrong"
    with EngineHost("chat", command, ROOT, tmp_path / "log2") as host, pytest.raises(ConfigError, match="not accepted"):
        host.wait_ready()
