"""Stopping every process of a sandbox where it is, and letting them go on.

With a cgroup of version 2 the kernel does it at once. Elsewhere SIGSTOP goes to every process of the tree, again and
again until none runs: a process that forks meanwhile is one more to stop, but what is stopped forks no more. A chain in
which each process forks and ends at once could run ahead of that for long, so pid 1 is stopped too before giving up:
then nobody takes away what has ended, and the chain runs into its bound of processes.

A signal never meets a process that took over a number: it goes to a pidfd, after a look at its parents. Processes that
had stopped themselves before stay stopped when the others go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from sandbox import usage
from sandbox.errors import SandboxFailed

PATIENCE = 5.0  # seconds until it is given up
STILL = 3  # looks in a row at which nothing ran
ROUNDS = 50  # rounds after which pid 1 is stopped too, whatever still runs
PAUSE = 0.001  # seconds between looks
STOPPED, ENDED = "Tt", "ZX"


class Freezer:
    """Of one sandbox. `pid`: its pid 1; `group`: its cgroup of version 2, if it has one."""

    def __init__(self, pid: int, group: Path | None) -> None:
        """While pid 1 is surely there: it is known by its start time from then on."""
        self._pid = pid
        self._group = group if group is not None and (group / "cgroup.freeze").exists() else None
        self._began = _started(pid)
        self._stopped: set[tuple[int, int]] = set()  # number and start time of those that we stopped
        self._frozen = self._released = False

    def freeze(self) -> None:
        """Stop all. Raises SandboxFailed, with all running again, if some could not be stopped."""
        if self._group is not None and self._freeze_group(self._group):
            return
        self._stopped.clear()
        deadline = time.monotonic() + PATIENCE
        still = rounds = 0
        while still < STILL:
            if time.monotonic() > deadline:
                self.thaw()
                fix = "try again; or kill it"
                raise SandboxFailed("it starts processes faster than they can be stopped", where="pause", fix=fix)
            still = 0 if self.hold(with_init=rounds > ROUNDS) else still + 1
            rounds += 1
            time.sleep(PAUSE)
        self._stop(self._pid)

    def hold(self, *, with_init: bool = False) -> int:
        """Stop what runs; returns how many did. Called now and then it also catches what escaped the first time."""
        if self._frozen:
            return 0
        running = 0
        for pid in usage.tree(self._pid):
            if pid == self._pid and not with_init:
                continue
            states = _states(pid)
            if states and all(state in STOPPED + ENDED for state in states):
                continue
            told = (pid, _started(pid)) in self._stopped
            waits = self._stop(pid) and told and all(state in STOPPED + ENDED + "D" for state in states)
            running += not waits  # D: it was told to stop, and will before it does anything else
        return running

    def thaw(self) -> None:
        """Let those go on that were stopped here."""
        if self._frozen and self._group is not None:
            with contextlib.suppress(OSError):
                (self._group / "cgroup.freeze").write_text("0")
            self._frozen = False
        for pid, started in sorted(self._stopped):
            if _started(pid) == started:
                self._send(pid, signal.SIGCONT)
        self._stopped.clear()

    def release(self) -> None:
        """The sandbox is being killed: what is frozen outside of it (bwrap) has to see that. From any thread."""
        self._released = True
        if self._group is not None:
            with contextlib.suppress(OSError):
                (self._group / "cgroup.freeze").write_text("0")

    def _freeze_group(self, group: Path) -> bool:
        """Whether the kernel froze it. SIGKILL still reaches what is frozen."""
        try:
            (group / "cgroup.freeze").write_text("1")
            self._frozen = True
            deadline = time.monotonic() + PATIENCE
            while "frozen 1" not in (group / "cgroup.events").read_text():
                if self._released or time.monotonic() > deadline:
                    self.thaw()
                    return False
                time.sleep(PAUSE)
        except OSError:
            self.thaw()
            return False
        if self._released:  # killed just now: it was let go before it was frozen
            self.thaw()
        return True

    def _stop(self, pid: int) -> bool:
        started = _started(pid)
        if started is None or not self._send(pid, signal.SIGSTOP):
            return False
        self._stopped.add((pid, started))
        return True

    def _send(self, pid: int, number: signal.Signals) -> bool:
        """Signal a process of the tree; False if it is gone or belongs to somebody else by now."""
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            if not self._is_ours(pid):
                return False
            signal.pidfd_send_signal(descriptor, number)  # fails if what we looked at was not this process
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _is_ours(self, pid: int) -> bool:
        """Whether pid 1 of the sandbox is among its parents."""
        while pid not in (0, 1):
            if pid == self._pid:
                return _started(pid) == self._began
            fields = usage.stat_fields(pid)
            if not fields:
                return False
            pid = int(fields[1])
        return False


def _started(pid: int) -> int | None:
    fields = usage.stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else None


def _states(pid: int) -> list[str]:
    """Of every thread: the first one may have ended while others run."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return []
    found = [usage.stat_fields(f"{pid}/task/{thread}") for thread in threads]
    return [fields[0] for fields in found if fields]
