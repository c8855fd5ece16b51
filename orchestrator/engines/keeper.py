"""Runs one engine program so that it can't outlive the supervisor: `python -I -S keeper.py LIFELINE COMMAND…`.

LIFELINE is the number of a pipe's read end whose only write end the supervisor holds. When that end is gone (also after
kill -9 of the supervisor) everything the program started is killed; a byte on it first means: SIGTERM, two seconds,
then kill. A parent-death signal alone would not do: the kernel sends it when the *thread* that started it ends.
Exits with the program's code, or 128 + its signal. Standard library only; no import of this project.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE = 2.0  # seconds between SIGTERM and SIGKILL


def main() -> int:
    """Start the command, wait for its end or the lifeline's."""
    lifeline, command = int(sys.argv[1]), sys.argv[2:]
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the program leaves behind becomes our child
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, lifeline, prctl, parent)
    try:
        os.setpgid(child, child)  # whoever of the two is first
    except (ProcessLookupError, PermissionError):
        pass
    os.close(0)  # the listening socket is the program's
    ended = os.pidfd_open(child)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(lifeline, select.POLLIN | select.POLLHUP)
    ready = [descriptor for descriptor, _ in poller.poll()]
    if ended not in ready and os.read(lifeline, 1):
        os.killpg(child, signal.SIGTERM)
        limit = time.monotonic() + GRACE
        poller.unregister(lifeline)
        poller.poll(max(0.0, limit - time.monotonic()) * 1000)
    return _end(child)


def _become(command: list[str], lifeline: int, prctl: ctypes._NamedFuncPointer, parent: int) -> None:
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setpgid(0, 0)
        os.close(lifeline)
        if os.getppid() != parent:
            os._exit(1)  # the keeper was gone before the line above
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _end(child: int) -> int:
    """Kill what is left, reap everything; the program's exit code."""
    code = 1
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code
        elif pid == 0:
            for left in _children():
                try:
                    os.kill(left, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.005)


def _children() -> list[int]:
    """Our children by /proc: orphans of the program are among them."""
    me, found = os.getpid(), []
    for name in os.listdir("/proc"):  # noqa: PTH208  # no pathlib: this program starts with every engine
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                if int(fields[1]) == me:
                    found.append(int(name))
            except (OSError, IndexError, ValueError):
                continue
    return found


if __name__ == "__main__":
    sys.exit(main())
