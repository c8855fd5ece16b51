"""Pid 1 of every sandbox: a tiny static program (pid1/pid1.c) that is copied in with mode 0111.

What can't be read is made non-dumpable by the kernel, so `/proc/1/environ`, `mem` and `fd` are closed to everything
inside. It tells the supervisor `ready`, waits for `go` (and ends on EOF, when the supervisor is gone), starts the
command, lets go of all descriptors that the command has, and reports its exit status. The kernel stamps each message
with the sender's pid (SO_PASSCRED): this is how the supervisor learns the pids of pid 1 and of the command, without
trusting anybody.

A shell would do (and did), but it can't hand descriptors on and forget them: its background jobs have no stdin and
ignore INT and QUIT. It also costs a millisecond more, and needs a libc that fits inside.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path

from sandbox.errors import CannotIsolate

PATH = "/runner"
PLACE = Path(__file__).with_name("pid1")
PINNED = {  # what scripts/build-pid1 printed
    "x86_64": "701d00bcf289f92bf00112b90f22ab50e3bd86eea5666664ce0c3c88ce418f7f",
    "aarch64": "deb236d1f90007f8021c47e5ff9dde0346470cdbb4ad53b76bc4c37bb2ca4317",
}


@functools.cache
def program(machine: str = "") -> bytes:
    """The program for this architecture. Raises CannotIsolate if there is none, or if it was changed."""
    name = machine or platform.machine()
    if name not in PINNED:
        fix = "add its system call numbers to sandbox/pid1/pid1.c and run scripts/build-pid1"
        raise CannotIsolate(f"there is no pid 1 for {name}", where=str(PLACE), fix=fix)
    file = PLACE / name
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CannotIsolate(f"pid 1 is missing ({error.strerror})", where=str(file), fix="install SIA again") from None
    if hashlib.sha256(content).hexdigest() != PINNED[name]:
        raise CannotIsolate("this is not the pid 1 that was checked", where=str(file), fix="install SIA again")
    return content


def argv(control: int, standard: tuple[int, int, int], processes: int | None, command: tuple[str, ...]) -> list[str]:
    """Command line of pid 1. `standard`: where it finds the command's stdin, stdout and stderr; all these numbers are
    ≥ 3, since bwrap's own processes keep 0, 1 and 2 open. `processes`: RLIMIT_NPROC, set by pid 1: a limit set before
    the user namespace exists counts the user's other processes."""
    return [PATH, *map(str, (control, *standard, processes or 0)), *command]
