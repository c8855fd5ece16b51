"""Checking answers against a candidate's schema, in a limited process that is kept between trials."""

from __future__ import annotations

import atexit
import hashlib
import json
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("answer_process.py")
_PATIENCE = 15.0  # seconds of wall clock for one step of a process that may use 2 s of processor time
_DEATHS = 3  # of a process in a row on one instance's answers; each of them costs seconds
_KEPT = 8  # schemas whose process is kept


@dataclass(frozen=True)
class Checked:
    """One answer: why it is not valid (None if it is), its action's name, and a key that equal actions share."""

    error: str | None
    action: str
    key: str


_TOO_MUCH = Checked("the check took too much time or memory", "", "")


class AnswerChecker:
    """Checks answers against one schema in a limited child process. Thread-safe. `fault`: why the schema is no use.

    Whoever checks the answers of one instance uses `Checks`: this one is shared and keeps no count against anybody.
    """

    def __init__(self, schema: bytes) -> None:
        self._schema = schema
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.fault: str | None = None
        with self._lock:
            self._start()

    def check(self, answer: str) -> Checked:
        """Check one answer, prefix included. An answer on which the process dies is not valid."""
        result = None
        with self._lock:
            if self._process is None:
                self._start()
            if self._process is not None:
                result = self._ask(answer.strip().encode("utf-8", "replace"))
        if result is None:
            return _TOO_MUCH
        return Checked(result["error"], result["action"], result["key"])

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )
        result = self._ask(self._schema)
        if result is None:
            self.fault = "compiling the schema took too much time or memory"
            self._schema = b""  # from here on only well-formedness is checked
        elif self.fault is None:
            self.fault = result["fault"] if self._schema.strip() else "there is no schema"

    def _ask(self, data: bytes) -> dict[str, Any] | None:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(len(data).to_bytes(4, "big") + data)
            process.stdin.flush()
            size = int.from_bytes(self._take(process, 4), "big")
            return json.loads(self._take(process, size))  # type: ignore[no-any-return]
        except (OSError, ValueError):
            self._stop()
            return None

    def _take(self, process: subprocess.Popen[bytes], size: int) -> bytes:
        deadline, data = time.monotonic() + _PATIENCE, b""
        assert process.stdout is not None
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise TimeoutError
            part = process.stdout.raw.read(size - len(data))  # type: ignore[attr-defined]
            if not part:
                raise OSError("the process ended")
            data += part
        return data

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                try:
                    if pipe:
                        pipe.close()
                except OSError:
                    pass  # what was not taken is lost with the process


_checkers: OrderedDict[str, AnswerChecker] = OrderedDict()
_checkers_lock = threading.Lock()


def checker(schema: bytes) -> AnswerChecker:
    """The checker of a schema; kept for the next trial with the same one."""
    name = hashlib.sha256(schema).hexdigest()
    with _checkers_lock:
        if name not in _checkers:
            if not _checkers:
                atexit.register(close_checkers)
            _checkers[name] = AnswerChecker(schema)
        _checkers.move_to_end(name)
        while len(_checkers) > _KEPT:
            _checkers.popitem(last=False)[1].close()
        return _checkers[name]


class Checks:
    """The checks of one trial's or one start's answers against its schema. Not thread-safe.

    After three answers in a row on which the process died no more of them are checked: they would cost seconds each,
    and they cost nobody else anything. `fault`: as the checker's.
    """

    def __init__(self, schema: bytes) -> None:
        self._schema = schema
        self._deaths = 0

    @property
    def fault(self) -> str | None:
        """Why the schema is no use, or None."""
        return checker(self._schema).fault

    def check(self, answer: str) -> Checked:
        """Check one answer, prefix included."""
        if self._deaths >= _DEATHS:
            return _TOO_MUCH
        result = checker(self._schema).check(answer)
        self._deaths = self._deaths + 1 if result is _TOO_MUCH else 0
        return result


def close_checkers() -> None:
    """End all processes of `checker`; a later call starts new ones."""
    with _checkers_lock:
        while _checkers:
            _checkers.popitem()[1].close()


def schema_fault(schema: bytes) -> str | None:
    """Why answers can't be guided by this schema, or None."""
    return checker(schema).fault
