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
from typing import TYPE_CHECKING, Any

import pytest
from lxml import etree

from orchestrator.engines import models
from orchestrator.engines.host import EngineDown, EngineHost
from orchestrator.engines.serve import EngineError, Line
from orchestrator.errors import ConfigError
from orchestrator.protocol import EngineUsage, Request, write_request
from orchestrator.replies import ReplyReader
from tests.orchestrator.broker_kit import kit_in, wait_for

if TYPE_CHECKING:
    from orchestrator.engines.openai.model import ChatModel

ROOT = Path(__file__).parents[4]
SCHEMA = (ROOT / "action_schema.xsd").read_text()
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
    """A chat server that does what `behaviour` says; `asked` are the bodies of its requests.

    `limit`: tokens of prompt and answer together, told and enforced as vLLM does; two characters are a token.
    """

    behaviour: Callable[[Chat, dict[str, Any]], None]
    asked: list[dict[str, Any]]
    owner = "somebody"
    limit: int | None = None

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == "Bearer wrong":
            self.fail(401, "Incorrect API key provided")
            return
        model = {"id": "m", "object": "model", "created": 1, "owned_by": self.owner, "max_model_len": self.limit}
        self.give({"object": "list", "data": [model]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = sum(len(message["content"]) // 2 + 4 for message in body["messages"])
        if self.path == "/tokenize":
            self.give({"count": prompt, "max_model_len": self.limit, "tokens": []})
            return
        self.asked.append(body)
        most = body["max_tokens"]
        if self.limit is not None and prompt + most > self.limit:
            wanted = f"you requested {prompt + most} tokens ({prompt} in the messages, {most} in the completion)"
            self.fail(400, f"This model's maximum context length is {self.limit} tokens. However, {wanted}.")
            return
        type(self).behaviour(self, body)

    def gone(self, seconds: float = 20.0) -> bool:
        """Whether whoever asked closes the connection soon."""
        self.connection.settimeout(seconds)
        try:
            return self.connection.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def give(self, value: Any, status: int = 200, **headers: str) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status: int, message: str, **headers: str) -> None:
        self.give({"error": {"message": message, "type": "error", "code": None}}, status, **headers)

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
def served(
    behaviour: Callable[[Any, dict[str, Any]], None], owner: str, limit: int | None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []
    handler = type("Handler", (Chat,), {"behaviour": behaviour, "asked": asked, "owner": owner, "limit": limit})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def engine(
    tmp_path: Path, behaviour: Callable[[Any, dict[str, Any]], None], *options: str, owner: str = "somebody"
) -> Iterator[tuple[EngineHost, list[dict[str, Any]]]]:
    """The engine program before a server."""
    with served(behaviour, owner, None) as (url, asked):
        name = options[0] if options and not options[0].startswith("-") else "m"
        rest = [option for option in options if option != name]
        command = ["python", "-m", "orchestrator.engines.openai", name, "--url", url, "--retries", "1", *rest]
        with EngineHost("chat", command, ROOT, tmp_path / "log") as host:
            yield host, asked


@contextlib.contextmanager
def model(
    behaviour: Callable[[Any, dict[str, Any]], None],
    *,
    owner: str = "somebody",
    limit: int | None = None,
    patience: float = 30.0,
) -> Iterator[tuple[ChatModel, list[dict[str, Any]]]]:
    """What the program serves, in this process: no start to wait for."""
    from orchestrator.engines.openai.model import ChatModel
    from orchestrator.engines.openai.server import ChatServer, ServerOptions

    with served(behaviour, owner, limit) as (url, asked):
        yield ChatModel(ChatServer(ServerOptions(url, "m", retries=1, patience=patience))), asked


def answer(model: ChatModel, request: Request) -> tuple[str, EngineUsage, tuple[str, str] | None]:
    pieces, text = model.infer(request, Line(closed=lambda: False)), b""
    try:
        while True:
            text += next(pieces)
    except StopIteration as end:
        return text.decode(), end.value, None
    except EngineError as error:
        return text.decode(), error.usage, (error.code, str(error))


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
