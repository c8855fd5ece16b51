"""A chat server that fails on purpose, and the openai engine before it: as a program, or in this process."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.engines.host import EngineDown, EngineHost
from orchestrator.engines.serve import EngineError, Line
from orchestrator.protocol import EngineUsage, Request, write_request
from orchestrator.replies import ReplyReader

if TYPE_CHECKING:
    from orchestrator.engines.openai.model import ChatModel

ROOT = Path(__file__).parents[4]
SCHEMA = (ROOT / "action_schema.xsd").read_text()


def ask(host: EngineHost, request: Request) -> tuple[str, EngineUsage, tuple[str, str] | None]:
    """One request to the program, on a line of its own: text, usage, error."""
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
    """An inference; `more` are other values than usual."""
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
    """A chat server: its address, and the bodies of what it was asked."""
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
    """One request to the model in this process: text, usage, error."""
    pieces, text = model.infer(request, Line(closed=lambda: False)), b""
    try:
        while True:
            text += next(pieces)
    except StopIteration as end:
        return text.decode(), end.value, None
    except EngineError as error:
        return text.decode(), error.usage, (error.code, str(error))
