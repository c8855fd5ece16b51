"""`sia supervise`, `sia run`, `sia send`: keep the main instance alive, run it once, talk to it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from orchestrator.cli.options import DryRun
from orchestrator.errors import Failed, UsageError
from orchestrator.home import open_home
from orchestrator.messages import MESSAGE_LIMIT, MessageLog, check_message

if TYPE_CHECKING:
    from orchestrator.home import Home


def supervise(*, engine: str | None = None) -> int:
    """Keep the main instance alive, and carry out promotions and rollbacks. restart.sh runs this.

    The agent's answers go to stdout, one line per event to stderr. Standard input is not read: use `sia send`.
    SIGTERM and SIGINT let the agent save its state and stop (exit 0), SIGHUP makes restart.sh start it again (exit
    42). Exit 78: settings or the machine must be changed first.

    Parameters
    ----------
    engine
        An engine of sia.toml, or `llama:MODEL`, instead of `[main] engine`.
    """
    return _supervise(open_home(), engine, once=False)


def run(*, engine: str | None = None) -> int:
    """Run the main instance once, in the foreground. Lines typed here are messages to it.

    It ends when the agent stops (exit 0), crashes (exit 1) or at Ctrl-C (exit 130, state saved).

    Parameters
    ----------
    engine
        An engine of sia.toml, or `llama:MODEL`, instead of `[main] engine`.
    """
    home = open_home()
    messages = MessageLog(home.main / "messages.log")
    threading.Thread(target=_read_messages, args=(messages,), name="stdin", daemon=True).start()
    return _supervise(home, engine, once=True)


def send(
    text: str,
    /,
    *,
    to: str = "main",
    dry_run: DryRun = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Send a message to the main instance. It is stored even if nothing runs now, and read once.

    A trial of a campaign gets it on its standard input; as no other trial does, its result does not count any more.

    Parameters
    ----------
    text
        The message; `-` reads it from standard input.
    to
        A running trial (its id or the unique beginning of it) instead of the main instance.
    as_json
        Print where it lies in the message log.
    """
    if text == "-":
        content = sys.stdin.buffer.read(MESSAGE_LIMIT + 1)
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            raise UsageError("the message is not valid UTF-8", where="standard input", fix="send text") from None
    if to != "main":
        from orchestrator.cli.steps import step

        return step("message", to, text, dry_run=dry_run, as_json=as_json)
    if dry_run:
        check_message(text)
        said = "The message is stored in the message log; the main instance reads it once, now or at its next start."
        print(json.dumps({"dry_run": True, "kind": "message", "text": said}) if as_json else said)
        return 0
    home = open_home()
    sent = MessageLog(home.main / "messages.log").append(text)
    if as_json:
        print(json.dumps({"start": sent.start, "end": sent.end}))
    else:
        from orchestrator.supervisor_lock import holder

        waits = "" if holder(home) else "; no supervisor runs, so it waits for the next start"
        print(f"stored at bytes {sent.start}–{sent.end}{waits}", file=sys.stderr)
    return 0


def _supervise(home: Home, engine: str | None, *, once: bool) -> int:
    from orchestrator.config import load_settings
    from orchestrator.supervisor import Supervisor
    from orchestrator.untrusted import printable

    with contextlib.ExitStack() as stack:
        out = stack.enter_context(Writer(1))
        log = stack.enter_context(Writer(2))

        def report(text: str) -> None:
            log.write(f"{time.strftime('%H:%M:%S')} {printable(text)}\n".encode())

        supervisor = Supervisor(
            home, load_settings(home.checkout), stdout=Answers(out).write, report=report, engine=engine, once=once
        )
        try:
            return supervisor.run()
        except sqlite3.Error as error:
            fix = "free disk space; everything that was committed is kept"
            raise Failed(f"the database can't be used: {error}", where=str(home.database), fix=fix) from None
        except OSError as error:
            where = error.filename if isinstance(error.filename, str) else str(home.root)
            fix = "check the disk and the limits of this user; everything that was committed is kept"
            raise Failed(f"the system refuses: {error.strerror or error}", where=where, fix=fix) from None


def _read_messages(messages: MessageLog) -> None:
    """Every line of the terminal is one message. The end of input ends nothing: the agent works on."""
    from orchestrator.errors import SiaError

    for line in sys.stdin.buffer:
        with contextlib.suppress(SiaError):  # an empty line, or bytes that are no text
            messages.append(line.decode("utf-8", "replace"))


class Answers:
    """The agent's output as text that can't do anything to a terminal. Characters may come in pieces."""

    def __init__(self, writer: Writer) -> None:
        import codecs

        self._writer = writer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._terminal = os.isatty(1)

    def write(self, data: bytes) -> None:
        """Called by the instance's thread; never blocks."""
        if not self._terminal:
            self._writer.write(data)
            return
        from orchestrator.untrusted import printable

        self._writer.write(printable(self._decoder.decode(data)).encode("utf-8", "replace"))


class Writer:
    """Writes to a descriptor in a thread of its own, so that a paused terminal or a full pipe never stops supervision.

    Holds at most `LIMIT` bytes; what comes beyond that is dropped and counted. A reader that went away is ignored."""

    LIMIT = 1024 * 1024

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._dropped = 0
        self._closing = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"writer-{descriptor}", daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join(2.0)  # a reader that does not read does not keep us

    def write(self, data: bytes) -> None:
        """Queue bytes."""
        with self._news:
            if len(self._buffer) + len(data) > self.LIMIT:
                self._dropped += len(data)
                return
            if self._dropped:
                self._buffer += b"\n[%d bytes were dropped: nobody read them]\n" % self._dropped
                self._dropped = 0
            self._buffer += data
            self._news.notify()

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._buffer and not self._closing:
                    self._news.wait()
                if not self._buffer:
                    return
                piece = bytes(self._buffer)
                self._buffer.clear()
            while piece:
                try:
                    piece = piece[os.write(self._descriptor, piece) :]
                except OSError:
                    break
