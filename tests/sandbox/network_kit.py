"""What tests of the allow-list share: servers on loopback, and scripts that talk to the proxy from inside.

A test module takes the fixtures with `site, lines = network_kit.site, network_kit.lines`, and so on.
"""

from __future__ import annotations

import contextlib
import http.server
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox.process import Outcome

# Inside, before each script: a connection to the proxy that said `words`, and what it answered.
SAY = """
import os, socket, sys, time, urllib.request, urllib.error
def ask(words, more=b"", port=3128):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(words)
        data = b""
        try:
            while piece := line.recv(65536):
                data += piece
        except ConnectionResetError:
            data += b"(reset)"
        return data
def status(words):
    return ask(words).split(b"\\r\\n")[0].decode()
"""


class Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"{self.path} for {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class _Lines(socketserver.BaseRequestHandler):
    """Counts what it is sent, and who is there at the same time; answers at the end."""

    def handle(self) -> None:
        server: Any = self.server
        with server.lock:
            server.now += 1
            server.most = max(server.most, server.now)
        size = 0
        try:
            while data := self.request.recv(1 << 20):
                size += len(data)
            self.request.sendall(str(size).encode())
        except OSError:
            pass
        with server.lock:
            server.now -= 1
            server.got += size


@contextlib.contextmanager
def serving(handler: Any, kind: Any = http.server.ThreadingHTTPServer) -> Iterator[Any]:
    server = kind(("127.0.0.1", 0), handler)
    server.lock, server.now, server.most, server.got = threading.Lock(), 0, 0, 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Threads(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128


@pytest.fixture
def site() -> Iterator[int]:
    with serving(Site) as server:
        yield server.server_address[1]


@pytest.fixture
def lines() -> Iterator[Any]:
    with serving(_Lines, _Threads) as server:
        yield server


Inside = Callable[..., tuple[Outcome, str]]


@pytest.fixture
def within(inside: Inside) -> Inside:
    """`within(script, network)`: a Python script with SAY before it."""

    def run(script: str, network: tuple[str, ...], **fields: object) -> tuple[Outcome, str]:
        return inside(SAY + script, python=True, network=network, **fields)

    return run


@pytest.fixture
def shell(inside: Inside) -> Inside:
    """`shell(script, network)`: a shell script; the interpreter that the allow-list needs is there."""

    def run(script: str, network: tuple[str, ...], **fields: object) -> tuple[Outcome, str]:
        return inside("", python=True, network=network, **{"command": ("sh", "-c", script), **fields})

    return run
