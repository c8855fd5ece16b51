"""The server behind /run/sia/supervisor.sock: requests of the agent's tools, the same answers for every instance.

Each instance has a socket and a thread of its own here, which serves one connection after the other: an instance that
sends half a request, floods or stalls delays only itself.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from lxml import etree

from orchestrator.descriptors import refuse_descriptors
from orchestrator.errors import SiaError

EOT = b"\x04"
BUNDLE_CAP = 16 * 1024 * 1024  # bytes of a proposed bundle
REQUEST_CAP = BUNDLE_CAP * 4 // 3 + 1024 * 1024  # bytes of a request: the bundle in base64 with line ends, and the rest
ATTRIBUTES_CAP = 16
ANSWER_CAP = 64 * 1024  # characters of an answer
REQUEST_SECONDS = 30.0  # from the first byte of a request to its end
CONNECTION_SECONDS = 300.0  # after which an idle connection is closed


class Services(Protocol):
    """What the requests ask for. Each returns text for a model to read; a SiaError becomes such a text."""

    def propose(self, origin: str, branch: str, why: str, bundle: bytes) -> str:
        """Store a proposal. `origin` names the instance that sent it."""

    def results(self, origin: str, campaign: str) -> str:
        """What a campaign found ("" = the latest). Sealed tasks never appear."""

    def status(self, origin: str) -> str:
        """That the supervisor runs, and which campaigns ended last."""

    def trial(self, origin: str, branch: str, task: str) -> str:
        """A test instance of the agent's own branch; refused in this version."""


@dataclass
class _Listener:
    end: socket.socket
    thread: threading.Thread
    connections: set[socket.socket] = field(default_factory=set)
    closed: bool = False


class SupervisorServer:
    """The sockets of all instances of this process. Thread-safe."""

    def __init__(self, directory: Path, services: Services) -> None:
        """`directory` (`home.run`) holds the sockets. Those that a killed process left there are removed."""
        _sweep(directory)
        self._directory, self._services = directory, services
        self._listeners: dict[Path, _Listener] = {}
        self._lock = threading.Lock()

    def listen(self, origin: str) -> Path:
        """A new socket for one instance; connectable by the sandbox uid."""
        path = self._directory / f"s-{os.getpid()}-{secrets.token_hex(4)}"
        listening = socket.socket(socket.AF_UNIX)
        try:
            _bind(listening, path)
            path.chmod(0o666)  # the sandbox uid connects; the directory keeps other users of the host out
            refuse_descriptors(listening)  # what it accepts takes after it
            listening.listen(8)
        except BaseException:
            listening.close()
            raise
        listener = _Listener(listening, threading.Thread(target=self._serve, args=(path, origin), daemon=True))
        with self._lock:
            self._listeners[path] = listener
        listener.thread.start()
        return path

    def forget(self, path: Path) -> None:
        """Close and remove a socket made by `listen`, with its connections. A request in work is still carried out."""
        with self._lock:
            listener = self._listeners.pop(path, None)
            if listener is None:
                return
            listener.closed = True
            ends = [listener.end, *listener.connections]
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes accept and recv, which close alone does not
        path.unlink(missing_ok=True)
        listener.thread.join(0.5)

    def close(self) -> None:
        """Remove all sockets and end their threads."""
        for path in list(self._listeners):
            self.forget(path)

    def _serve(self, path: Path, origin: str) -> None:
        with self._lock:
            listener = self._listeners.get(path)
        if listener is None:
            return
        with listener.end:
            while not listener.closed:
                try:
                    connection, _ = listener.end.accept()
                except OSError:
                    return
                with connection:
                    listener.connections.add(connection)
                    with contextlib.suppress(OSError):
                        self._converse(connection, origin)
                    listener.connections.discard(connection)

    def _converse(self, connection: socket.socket, origin: str) -> None:
        """Answer request after request until the other side closes, stalls or sends too much."""
        rest = b""
        while True:
            request, rest = _receive(connection, rest)
            if request is None:
                return
            answer = answer_request(self._services, origin, request)
            connection.settimeout(REQUEST_SECONDS)
            connection.sendall(_clean(answer).encode("utf-8") + EOT)


def answer_request(services: Services, origin: str, request: bytes) -> str:
    """The text that answers one request (without U+0004). Never raises for what the request holds."""
    try:
        understood = _parse(request)
    except ValueError as error:
        return f"The request was not understood: {error}."
    try:
        return _dispatch(services, origin, understood)
    except SiaError as error:
        return f"Not done: {error.what}." + (f" What helps: {error.fix}." if error.fix else "")


def _dispatch(services: Services, origin: str, request: _Request) -> str:
    given = request.attributes
    if request.tag == "propose":
        try:
            bundle = base64.b64decode("".join("".join(request.parts).split()), validate=True)
        except (binascii.Error, ValueError):
            return "Not done: the proposal's content is not base64."
        if not given.get("branch") or not bundle:
            return 'Not done: a proposal needs <propose branch="NAME" why="REASON">BASE64 OF A BUNDLE</propose>.'
        if len(bundle) > BUNDLE_CAP:
            return f"Not done: the bundle has {len(bundle):,} bytes, the most is {BUNDLE_CAP:,}."
        return services.propose(origin, given["branch"], given.get("why", ""), bundle)
    if request.tag == "results":
        return services.results(origin, given.get("campaign", ""))
    if request.tag == "status":
        return services.status(origin)
    if request.tag == "trial":
        return services.trial(origin, given.get("branch", ""), given.get("task", ""))
    return f"Unknown request <{request.tag[:40]}>. Known are propose, results, status and trial."


def _parse(request: bytes) -> _Request:
    """The request. Raises ValueError for anything but one plain XML element in UTF-8."""
    if b"<!DOCTYPE" in request or b"<!ENTITY" in request:
        raise ValueError("a document type is not allowed")
    parser = etree.XMLParser(  # huge_tree: a text of 16 MB; the size is capped, and without a DTD nothing can expand
        target=_Reader(),
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        remove_comments=True,
        remove_pis=True,
        huge_tree=True,
    )
    try:
        return cast("_Request", etree.fromstring(request, parser))
    except etree.XMLSyntaxError as error:
        raise ValueError(f"not well-formed XML ({str(error)[:200]})") from None


@dataclass
class _Request:
    """One element: its name, its attributes, its text."""

    tag: str
    attributes: dict[str, str]
    parts: list[str] = field(default_factory=list)


class _Reader:
    """Receives the parser's events: a tree of millions of elements would take many times the request's size."""

    def __init__(self) -> None:
        self._request: _Request | None = None

    def start(self, tag: str | bytes, attrib: Mapping[str | bytes, str | bytes]) -> None:
        if self._request is not None or len(attrib) > ATTRIBUTES_CAP:
            raise ValueError("a request is one element with a few attributes, which holds text alone")
        self._request = _Request(str(tag), {str(name): str(value) for name, value in attrib.items()})

    def data(self, data: str | bytes) -> None:
        if self._request is not None:
            self._request.parts.append(str(data))

    def end(self, tag: str | bytes) -> None:
        pass

    def comment(self, data: str | bytes) -> None:
        pass  # the parser removes them

    def close(self) -> _Request:
        if self._request is None:
            raise ValueError("not well-formed XML (no element)")
        return self._request


def _receive(connection: socket.socket, rest: bytes) -> tuple[bytes | None, bytes]:
    """One request and what came after it; (None, b"") when the connection ended, stalled or sent too much."""
    parts, size = [rest], len(rest)
    deadline = time.monotonic() + (REQUEST_SECONDS if rest else CONNECTION_SECONDS)
    while EOT not in parts[-1]:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        data = connection.recv(65536)
        if not data:
            return None, b""
        if not size:
            deadline = time.monotonic() + REQUEST_SECONDS
        size += len(data)
        if size > REQUEST_CAP:
            connection.sendall(f"Not done: a request has at most {REQUEST_CAP:,} bytes.".encode() + EOT)
            return None, b""
        parts.append(data)
    request, _, after = b"".join(parts).partition(EOT)
    return request, after


def _clean(text: str) -> str:
    shortened = text if len(text) <= ANSWER_CAP else text[:ANSWER_CAP] + "\n[cut]"
    return shortened.replace("\x04", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _bind(listening: socket.socket, path: Path) -> None:
    with _short(path) as name:
        listening.bind(name)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """bind(2) and connect(2) take at most 107 bytes of path; through the directory's descriptor it is always short."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _sweep(directory: Path) -> None:
    """Remove sockets whose process is gone and that nobody listens at; either sign alone could be wrong."""
    for path in directory.glob("s-*-*"):
        if Path("/proc", path.name.split("-")[1]).exists():
            continue
        with socket.socket(socket.AF_UNIX) as probe, _short(path) as name:
            try:
                probe.connect(name)
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue  # gone already
