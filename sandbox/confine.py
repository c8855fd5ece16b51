"""`confine CMD…`: run a command that may write only in the current directory and /tmp (Landlock).

Runs as a script inside the verifier's sandbox (`python -I -S confine.py CMD…`): standard library only. The command
can't signal processes outside its confinement either, where the kernel (6.12) can do that. Reading is not restricted,
and neither are modes and times of files that it owns.

Exit 126 with a reason where Landlock is missing, 127 if there is no such command; else the command's own exit code
(the process is replaced).
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from typing import NoReturn

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
VERSION_FLAG, PATH_BENEATH = 1, 1
PR_SET_NO_NEW_PRIVS = 38
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
REMOVE_AND_MAKE, REFER, TRUNCATE = 0x1FF0, 1 << 13, 1 << 14
SCOPES = 0b11  # abstract unix sockets, signals
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty")
CLOSED = frozenset({"tests", "logs"})  # at the top of the file system
O_PATH = 0o10000000


class Attributes(ctypes.Structure):
    """struct landlock_ruleset_attr; older kernels take its beginning."""

    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class Beneath(ctypes.Structure):
    """struct landlock_path_beneath_attr."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Landlock's version in this kernel; 0 = none."""
    return max(0, int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_FLAG)))


def supported() -> bool:
    """Whether this kernel can confine at all."""
    return version() > 0


def fail(reason: str) -> NoReturn:
    """Exit 126: nothing was run."""
    sys.stderr.write(f"confine: {reason}\n")
    sys.exit(126)


def check(result: int, what: str) -> int:
    """The result of a system call, or the end."""
    if result < 0:
        fail(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def restrict(places: list[str]) -> None:
    """From now on this process and its children write nowhere but below `places` and to harmless devices.

    They read and execute everywhere but in CLOSED. Landlock knows only what is allowed, so that is every other name at
    the top of the file system.
    """
    known = version()
    if known == 0:
        fail("this kernel has no Landlock (or it is switched off), so writes can't be confined")
    writes = WRITE_FILE | REMOVE_AND_MAKE | (REFER if known >= 2 else 0) | (TRUNCATE if known >= 3 else 0)
    reads = EXECUTE | READ_FILE | READ_DIR
    attributes = Attributes(writes | reads, 0, SCOPES if known >= 6 else 0)
    size = ctypes.c_size_t(24 if known >= 6 else 16 if known >= 4 else 8)
    rules = check(libc.syscall(CREATE_RULESET, ctypes.byref(attributes), size, 0), "landlock_create_ruleset")
    files = WRITE_FILE | (TRUNCATE if known >= 3 else 0)
    allowed = [(place, writes | reads) for place in places] + [(device, files | READ_FILE) for device in DEVICES]
    allowed += [(f"/{name}", reads) for name in os.listdir("/") if name not in CLOSED]  # noqa: PTH208
    for place, rights in allowed:
        try:
            descriptor = os.open(place, O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= files | EXECUTE | READ_FILE  # a file has no others, and naming them is an error
        rule = Beneath(rights, descriptor)
        check(libc.syscall(ADD_RULE, rules, PATH_BENEATH, ctypes.byref(rule), 0), f"landlock_add_rule {place}")
        os.close(descriptor)
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    check(libc.syscall(RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def main() -> NoReturn:
    """Confine, then become the command."""
    command = sys.argv[1:]
    if not command:
        fail("usage: confine COMMAND [ARGUMENT…]")
    restrict([os.getcwd(), "/tmp"])  # noqa: PTH109
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"confine: {command[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
