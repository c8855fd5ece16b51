"""Running the real `sia` commands for the demo, so that nothing of them outlives it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import Failed
from orchestrator.untrusted import printable

PATIENCE = 20.0  # seconds that a command gets to end in order
TURN = 0.1  # seconds between two looks


class Commands:
    """`sia` commands in one repository. `echo` is told each command line before it runs."""

    def __init__(self, repo: Path, echo: Callable[[str], None]) -> None:
        self._repo, self._echo = repo, echo

    def run(self, *words: str, ok: tuple[int, ...] = (0,)) -> int:
        """Run one command on our own terminal, and wait for it. Raises Failed if its exit code is not one of `ok`.

        It has a process group of its own: Ctrl-C reaches us alone, and we pass it on, once.
        """
        self._echo(_shown(words))
        process = subprocess.Popen(
            _guarded(words, "INT"), cwd=self._repo, env=_environment(), stdin=subprocess.DEVNULL, process_group=0
        )
        try:
            code = process.wait()
        except BaseException:
            end(process, signal.SIGINT)
            raise
        if code == 130:
            raise KeyboardInterrupt
        if code not in ok:
            raise Failed(f"`{_shown(words)}` ended with exit code {code}", fix=f"look around in {self._repo}")
        return code

    @contextmanager
    def background(self, *words: str, out: Path, log: Path) -> Iterator[Background]:
        """Keep one command running while the block runs, its streams in files; SIGTERM ends it."""
        self._echo(f"{_shown(words)} &")
        with out.open("wb") as out_file, log.open("wb") as log_file:
            process = subprocess.Popen(
                _guarded(words, "TERM"),
                cwd=self._repo,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=log_file,
                process_group=0,
            )
        try:
            yield Background(process, _shown(words), out, log)
        finally:
            end(process, signal.SIGTERM)


class Background:
    """A running command; what it printed can be read bit by bit."""

    def __init__(self, process: subprocess.Popen[bytes], name: str, out: Path, log: Path) -> None:
        self._process, self._name = process, name
        self._files = {"out": out, "log": log}
        self._read = {"out": 0, "log": 0}

    def news(self, stream: str) -> list[str]:
        """Whole lines that came since the last call; `stream` is `out` or `log`."""
        with self._files[stream].open("rb") as file:
            file.seek(self._read[stream])
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[stream] += len(whole)
        return printable(whole).splitlines()

    def wait_for(self, what: str, done: Callable[[], bool], seconds: float) -> None:
        """Wait until `done()`. Raises Failed, with the end of the log, if that takes too long or the command ends."""
        deadline = time.monotonic() + seconds
        while not done():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                why = (
                    f"ended with exit code {self._process.returncode}"
                    if ended
                    else f"still waits after {seconds:.0f} s"
                )
                last = "\n".join(printable(self._files["log"].read_bytes()).splitlines()[-12:])
                raise Failed(f"`{self._name}` {why} for {what}\n{last}", where=str(self._files["log"]))
            time.sleep(TURN)


def end(process: subprocess.Popen[bytes], number: int) -> None:
    """End a command in order, and if it does not end, without. A second Ctrl-C shortens the patience."""
    if process.poll() is not None:
        return
    process.send_signal(number)
    try:
        process.wait(PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _guarded(words: tuple[str, ...], number: str) -> list[str]:
    """The argv; with util-linux's setpriv the kernel ends the command even if we are killed with -9."""
    command = [sys.executable, "-P", "-m", "orchestrator", *words]
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", number, "--", *command] if setpriv else command


def _environment() -> Mapping[str, str]:
    """Ours, but the state belongs where the demo's repository is."""
    return {name: value for name, value in os.environ.items() if name not in ("SIA_HOME", "SIA_FAULT")}


def _shown(words: tuple[str, ...]) -> str:
    return " ".join(["sia", *(f'"{word}"' if " " in word else word for word in words)])
