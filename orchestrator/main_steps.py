"""How a person steps in with the main instance: requests taken by its supervisor."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

from orchestrator import requests
from orchestrator.desk import Desk
from orchestrator.errors import Failed
from orchestrator.live import LiveFiles
from orchestrator.requests import Request

if TYPE_CHECKING:
    from orchestrator.home import Home
    from orchestrator.main_instance import MainInstance


class MainSteps:
    """The supervisor's desk. `look` is called in its loop, and never waits."""

    def __init__(self, connection: sqlite3.Connection, home: Home) -> None:
        self._live = LiveFiles(home)
        self._main: MainInstance | None = None
        self._since = 0.0
        self._desk = Desk(
            lambda subjects: requests.pending(connection, subjects),
            lambda id, result, refused: requests.finish(connection, id, result, refused=refused),
            self._act,
        )

    def begin(self, main: MainInstance) -> None:
        """It runs from now on."""
        self._main, self._since = main, time.time()

    def end(self) -> None:
        """It does not run any more."""
        self._main = None

    def look(self) -> None:
        """Take what is asked, store what was done."""
        main = self._main
        self._desk.look({main.nonce: self._since} if main else {})
        self._live.look({main.nonce: main.line.live} if main else {})

    def close(self) -> None:
        """The supervisor ends."""
        self._desk.close()
        self._live.close()

    def _act(self, request: Request) -> str:
        main = self._main
        if main is None or main.nonce != request.subject:
            raise Failed("it has just ended")
        if request.kind == "kill":
            main.kill_for(f"killed by a person ({request.asked_by})")
            return "killed; the supervisor decides what follows: `sia status`"
        if request.kind == "pause":
            main.pause()
            return "paused"
        if request.kind == "resume":
            if main.pauses.since is None:
                raise Failed("it is not paused")
            main.resume()
            return "it goes on"
        if request.kind == "message":
            sent = main.messages.append(request.text)
            return f"stored at bytes {sent.start}–{sent.end} of the message log"
        raise Failed(f"the main instance can't do {request.kind}")
