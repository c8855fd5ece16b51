"""The openai engine: against llama.cpp's own server with a real model, and against one that fails on purpose."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from orchestrator.engines import models
from orchestrator.engines.host import EngineDown, EngineHost
from orchestrator.errors import ConfigError
from orchestrator.protocol import EngineUsage, Request, write_request
from orchestrator.replies import ReplyReader

ROOT = Path(__file__).parents[4]
SCHEMA = (ROOT / "action_schema.xsd").read_text()
VALIDATOR = etree.XMLSchema(etree.fromstring(SCHEMA.encode()))
MODEL = models.directory() / models.KNOWN["smollm2"].file

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="the extra 'openai' is not installed"),
    pytest.mark.timeout(300),
]


def valid(answer: str) -> bool:
    return bool(VALIDATOR.validate(etree.fromstring(answer)))


def ask(host: EngineHost, request: Request) -> tuple[str, EngineUsage, tuple[str, str] | None]:
    reader, text = ReplyReader(), ""
    with host.connect() as line:
        line.settimeout(200)
        line.sendall(write_request(request))
        while not reader.done:
            data = line.recv(1 << 16)
            if not data:
                raise EngineDown("the line was closed")
            text += reader.feed(data)
    return text, reader.usage or EngineUsage(), reader.error


def infer(**more: Any) -> Request:
    values = {"system": "Act.", "schema": SCHEMA, "context": "<context/>", "seed": 1, "max_tokens": 12, **more}
    return Request("infer_xml", **values)


class Chat(BaseHTTPRequestHandler):
    """A chat server that does what `behaviour` says; `asked` are the bodies of its requests."""

    behaviour: Callable[[Chat, dict[str, Any]], None]
    asked: list[dict[str, Any]]
    owner = "somebody"

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == "Bearer wrong":
            self.fail(401, "Incorrect API key provided")
            return
        self.give({"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": self.owner}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        type(self).behaviour(self, body)

    def give(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status: int, message: str) -> None:
        self.give({"error": {"message": message, "type": "error", "code": None}}, status)

    def stream(self, *pieces: str, finish: str | None = "stop", usage: dict[str, Any] | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        for piece in pieces:
            self.event({**head, "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
        if finish:
            self.event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
            if usage:
                self.event({**head, "choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value: Any) -> None:
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 10,
    "total_tokens": 110,
    "prompt_tokens_details": {"cached_tokens": 60},
}


@contextlib.contextmanager
def engine(
    tmp_path: Path, behaviour: Callable[[Any, dict[str, Any]], None], *options: str, owner: str = "somebody"
) -> Iterator[tuple[EngineHost, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []
    handler = type("Handler", (Chat,), {"behaviour": behaviour, "asked": asked, "owner": owner})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    name = options[0] if options and not options[0].startswith("-") else "m"
    rest = [option for option in options if option != name]
    command = ["python", "-m", "orchestrator.engines.openai", name, "--url", url, "--retries", "1", *rest]
    try:
        with EngineHost("chat", command, ROOT, tmp_path / "log") as host:
            yield host, asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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


def test_a_prefix_that_is_written_again_is_not_given_twice(tmp_path: Path) -> None:
    with engine(tmp_path, lambda chat, _: chat.stream("<single>ls</single>")) as (host, asked):
        text, _, _ = ask(host, infer(prefix="<single>"))
    assert text == "ls</single>"
    assert "Begin your answer with exactly this" in asked[0]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("owner", "field"), [("llamacpp", "grammar"), ("vllm", "structured_outputs"), ("sglang", "ebnf")]
)
def test_grammars_go_to_servers_that_take_them(tmp_path: Path, owner: str, field: str) -> None:
    behaviour = lambda chat, _: chat.stream("ls", "</sin", "gle>", usage=USAGE)  # noqa: E731
    with engine(tmp_path, behaviour, owner=owner) as (host, asked):
        text, _, error = ask(host, infer(prefix="<single>"))
    assert (text, error) == ("ls</single>", None)
    assert "root ::= " in json.dumps(asked[0][field])
    assert asked[0]["messages"][-1] == {"role": "assistant", "content": "<single>"}


def test_a_server_that_ignores_the_grammar_is_checked_instead(tmp_path: Path) -> None:
    answers = iter(["Sure! <stop/>", "Sure! <stop/>", "<stop/>"])
    with engine(tmp_path, lambda chat, _: chat.stream(next(answers)), owner="vllm") as (host, asked):
        assert ask(host, infer())[0] == "<stop/>"
        assert ask(host, infer())[0] == "<stop/>"
    assert ["structured_outputs" in body for body in asked] == [True, False, False]


def test_a_server_that_refuses_the_grammar_is_checked_instead(tmp_path: Path) -> None:
    def behaviour(chat: Chat, body: dict[str, Any]) -> None:
        if "structured_outputs" in body:
            chat.fail(400, "unknown field structured_outputs")
        else:
            chat.stream("<stop/>")

    with engine(tmp_path, behaviour, owner="vllm") as (host, _):
        assert ask(host, infer())[0] == "<stop/>"


def test_an_answer_that_was_cut_at_the_limit_is_ended(tmp_path: Path) -> None:
    with engine(tmp_path, lambda chat, _: chat.stream("<single>ls -", finish="length"), owner="llamacpp") as (host, _):
        text, usage, _ = ask(host, infer())
    assert text == "<single>ls -</single>"
    assert usage.finish == "length"


FAULTS: dict[str, tuple[Callable[[Any, dict[str, Any]], None], str, str]] = {
    "a rate limit": (lambda chat, _: chat.fail(429, "slow down"), "engine", "rate limit, after 1 retries"),
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
    assert len(asked) == (2 if "after 1" in words else 1)


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
