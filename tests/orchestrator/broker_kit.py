"""A broker line between a test that plays the instance and a real engine program."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.answers import close_checkers
from orchestrator.broker import Budget, Line
from orchestrator.engines.host import EngineHost
from orchestrator.exchanges import ExchangeStore
from orchestrator.journal import Exchange, Journal
from orchestrator.protocol import escape

TOP = Path(__file__).parents[2]
STOPS = "[[rule]]\nanswer = '<stop/>'\n"
SCHEMA = b"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:element name="stop"/><xs:element name="single" type="xs:string"/><xs:element name="read_stdin"/>
<xs:element name="reasoning" type="xs:string"/>
<xs:element name="delete"><xs:complexType><xs:attribute name="id" use="required"/></xs:complexType></xs:element>
</xs:schema>"""


class Kit:
    """Engines, a store and lines in one directory; all closed at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = ExchangeStore(directory / "exchanges")
        self._engines: list[EngineHost] = []
        self._lines: list[Line] = []
        self._instances: list[Instance] = []

    def engine(self, policy: str = STOPS) -> EngineHost:
        """The scripted engine with a policy."""
        path = self.directory / f"policy-{len(self._engines)}.toml"
        path.write_text(policy, encoding="utf-8")
        return self._start(["python", "-m", "orchestrator.engines.scripted", str(path)])

    def program(self, body: str) -> EngineHost:
        """An engine program of its own: `body` handles one `line` (a socket) after another; `read()` is a request."""
        source = (
            "import os, socket, sys, time\n"
            "listener = socket.socket(fileno=0)\n"
            "def read():\n"
            "    data = b''\n"
            "    while not data.endswith(b'\\x04'):\n"
            "        part = line.recv(65536)\n"
            "        if not part: raise SystemExit(3)\n"
            "        data += part\n"
            "    return data\n"
            "while True:\n"
            "    line, _ = listener.accept()\n" + "".join(f"    {row}\n" for row in body.splitlines())
        )
        return self._start([sys.executable, "-c", source])

    def _start(self, command: list[str]) -> EngineHost:
        number = len(self._engines)
        engine = EngineHost(f"test-{number}", command, TOP, self.directory / f"engine-{number}.log")
        self._engines.append(engine)
        engine.start()
        return engine

    def line(
        self,
        engine: EngineHost,
        budget: Budget | None = None,
        *,
        name: str = "trial",
        schema: bytes = SCHEMA,
        on_exchange: Callable[[Exchange], None] | None = None,
        silence: float = 30.0,
        group: str = "main",
    ) -> tuple[Line, Instance]:
        """A started line and the instance's end of it."""
        journal = Journal.create(self.store, name, {"kind": "trial"})
        line = Line(engine, journal, budget or Budget(), schema, lambda n: n, on_exchange, silence=silence, group=group)
        self._lines.append(line)
        line.start()
        instance = Instance(line, journal)
        self._instances.append(instance)
        return line, instance

    def close(self) -> None:
        """End everything."""
        for line in self._lines:
            line.close()
        for instance in self._instances:
            instance.socket.close()
        close_checkers()
        for engine in self._engines:
            engine.close()
        self.store.close()


class Instance:
    """What the instance does with its socket."""

    def __init__(self, line: Line, journal: Journal) -> None:
        self.journal = journal
        self.socket = line.instance_end.dup()
        line.instance_end.close()
        self.socket.settimeout(60)
        self._rest = b""

    def send(self, data: bytes) -> None:
        """Raw bytes."""
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """The next reply, without its EOT. ConnectionError at the end of the line."""
        while b"\x04" not in self._rest:
            part = self.socket.recv(65536)
            if not part:
                raise ConnectionError(self._rest)
            self._rest += part
        reply, _, self._rest = self._rest.partition(b"\x04")
        return reply

    def ask(self, data: bytes) -> bytes:
        """One request and its reply."""
        self.send(data)
        return self.receive()

    def infer(self, context: str = "<context/>", system: str = "sys") -> bytes:
        """An inference."""
        return self.ask(infer_request(context, system))

    def closed(self, seconds: float = 20.0) -> bool:
        """Whether the broker closes the line soon."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def exchanges(self) -> list[Exchange]:
        """What the journal holds."""
        return list(self.journal)


def infer_request(context: str = "<context/>", system: str = "sys") -> bytes:
    """The bytes of an inference request."""
    return (
        f"<infer_xml><schema>/x</schema><system>{escape(system)}</system><context>{escape(context)}</context></infer_xml>\x04"
    ).encode()


def count_request(context: str = "<context/>") -> bytes:
    """The bytes of a token count."""
    body = f"<schema>/x</schema><system>s</system><context>{escape(context)}</context>"
    return f"<token_count>{body}</token_count>\x04".encode()


def wait_for(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Poll until it is true; fail after some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@contextmanager
def kit_in(directory: Path) -> Iterator[Kit]:
    """A Kit that is closed at the end."""
    kit = Kit(directory)
    try:
        yield kit
    finally:
        kit.close()
