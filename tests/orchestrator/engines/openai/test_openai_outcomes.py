"""Each failure of a chat server has its clear outcome, in time, and is charged with what it took."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.host import EngineDown
from orchestrator.errors import ConfigError
from orchestrator.protocol import write_request
from tests.orchestrator.broker_kit import kit_in, wait_for
from tests.orchestrator.engines.openai.chat_kit import SCHEMA, USAGE, Chat, answer, ask, engine, infer, model

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="the extra 'openai' is not installed"),
    pytest.mark.timeout(300),
]


FAULTS: dict[str, tuple[Callable[[Any, dict[str, Any]], None], str, str]] = {
    "a rate limit": (lambda chat, _: chat.fail(429, "slow down"), "engine", "rate limit, after 1 retry"),
    "a server's failure": (lambda chat, _: chat.fail(503, "overloaded"), "engine", "the server failed, after 1"),
    "a cut stream": (lambda chat, _: chat.stream("<single>l", finish=None), "engine", "cut off in mid-answer"),
    "a prompt that is too long": (
        lambda chat, _: chat.fail(400, "This model's maximum context length is 5 tokens"), "too_long", "maximum",
    ),
    "no JSON": (lambda chat, _: (chat.stream(finish=None), chat.wfile.write(b"data: {oops\n\n"))[0], "engine", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_have_clear_outcomes(tmp_path: Path, name: str) -> None:
    behaviour, code, words = FAULTS[name]
    with engine(tmp_path, behaviour) as (host, asked):
        _, _, error = ask(host, infer())
        assert host.wait_ready(30)  # it goes on
    assert error is not None
    assert error[0] == code
    assert words in error[1]
    assert len(asked) == (1 if code == "engine" and "after 1" not in words else 2)  # too long: once with a short answer


@pytest.mark.bad_input
def test_bad_input_a_wrong_key_and_a_wrong_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = lambda chat, _: chat.stream("<stop/>")  # noqa: E731
    with engine(tmp_path, nothing, "gpt-0") as (host, _), pytest.raises(ConfigError) as caught:
        host.wait_ready(60)
    print(caught.value.render())
    assert "no model 'gpt-0'" in caught.value.render()
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    with engine(tmp_path, nothing) as (host, _), pytest.raises(ConfigError) as caught:
        host.wait_ready(60)
    print(caught.value.render())
    assert "the key in OPENAI_API_KEY is not accepted" in caught.value.render()


def test_a_key_that_is_refused_later_ends_the_engine(tmp_path: Path) -> None:
    with engine(tmp_path, lambda chat, _: chat.fail(401, "expired")) as (host, _):
        host.wait_ready(60)
        with pytest.raises((EngineDown, ConnectionError)):
            ask(host, infer())
        time.sleep(0.3)
        assert not host.alive()
        assert "not accepted" in (tmp_path / "log").read_text()


def test_a_line_that_is_closed_ends_the_request(tmp_path: Path) -> None:
    ended = threading.Event()

    def endless(chat: Chat, _: dict[str, Any]) -> None:
        try:
            chat.stream(*(["x"] * 20), finish=None)
            while True:
                chat.event({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []})
                time.sleep(0.02)
        except OSError:
            ended.set()

    with engine(tmp_path, endless) as (host, _):
        host.wait_ready(60)
        line = host.connect()
        line.sendall(write_request(infer(schema="")))
        line.recv(10)
        line.close()
        assert ended.wait(20)


def test_a_line_that_is_closed_ends_the_wait_for_the_first_byte(tmp_path: Path) -> None:
    ended, begun = threading.Event(), threading.Event()

    def slow(chat: Chat, _: dict[str, Any]) -> None:
        begun.set()
        if chat.gone():
            ended.set()

    with engine(tmp_path, slow) as (host, _):
        host.wait_ready(60)
        line = host.connect()
        line.sendall(write_request(infer()))
        assert begun.wait(20)
        line.close()
        assert ended.wait(5)


def test_a_line_that_is_closed_ends_the_wait_for_another_try(tmp_path: Path) -> None:
    behaviour = lambda chat, _: chat.fail(429, "slow down", retry_after_ms="800")  # noqa: E731
    with engine(tmp_path, behaviour) as (host, asked):
        host.wait_ready(60)
        line = host.connect()
        line.sendall(write_request(infer()))
        wait_for(lambda: asked)
        line.close()
        time.sleep(1.5)
    assert len(asked) == 1


@pytest.mark.parametrize("after", [{"retry_after": "50"}, {"retry_after": "Fri, 01 Jan 2100 00:00:00 GMT"}])
def test_a_rate_limit_is_told_in_time(after: dict[str, str]) -> None:
    with model(lambda chat, _: chat.fail(429, "slow down", **after), patience=5) as (chat_model, asked):
        begun = time.monotonic()
        _, usage, error = answer(chat_model, infer())
        assert time.monotonic() - begun < 5
    assert error is not None and error[0] == "engine"
    assert error[1].startswith("rate limit, after 0 retries, and it is ")
    assert len(asked) == 1
    assert usage.prompt is None  # nothing was generated


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    ended = threading.Event()

    def silent(chat: Chat, _: dict[str, Any]) -> None:
        if chat.gone():
            ended.set()

    with model(silent, patience=1) as (chat_model, _):
        _, usage, error = answer(chat_model, infer())
        assert ended.wait(5)
    assert error == ("engine", "no answer from the server in 1 s")
    assert usage.prompt and usage.completion == 0 and usage.cost is None  # it may have worked


@pytest.mark.parametrize("slow", ["first", "second"])
def test_the_last_answer_is_given_while_there_is_time(slow: str) -> None:
    def behaviour(chat: Chat, _: dict[str, Any]) -> None:
        if slow == "first":
            time.sleep(1.2)
        elif len(asked) == 2:
            chat.gone()
            return
        chat.stream("No.", usage=USAGE)

    with model(behaviour, patience=2) as (chat_model, asked):
        text, usage, error = answer(chat_model, infer())
    assert (text, error, usage.finish) == ("No.", None, "stop")
    assert len(asked) == (1 if slow == "first" else 2)
    assert usage.prompt is not None
    assert usage.prompt == 100 if slow == "first" else usage.prompt > 100


@pytest.mark.parametrize("cut", [False, True])
def test_a_failure_charges_what_came_before_it(tmp_path: Path, cut: bool) -> None:
    def behaviour(chat: Chat, _: dict[str, Any]) -> None:
        if len(asked) == 1:
            chat.stream("No.", usage=USAGE)
        elif cut:
            chat.stream("<single>l", finish=None)
        else:
            chat.fail(429, "slow down")

    with engine(tmp_path, behaviour) as (host, asked), kit_in(tmp_path) as kit:
        line, instance = kit.line(host, schema=SCHEMA.encode())
        reply = instance.infer().decode()
        assert reply.startswith("\x15engine the stream was cut off" if cut else "\x15engine rate limit")
        wait_for(lambda: instance.exchanges())
        used = line.usage
    assert (used.iterations, used.cost) == (0, None)
    if cut:
        assert used.prompt_tokens > 100 and used.completion_tokens > 10
    else:
        assert (used.prompt_tokens, used.completion_tokens, used.cached_tokens) == (100, 10, 60)
