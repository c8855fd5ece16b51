"""A table of attempts, and the small program that makes them all in one launch. Standard library only: it runs inside.

An attempt is a function. An OSError that it raises is its result (`EPERM`), and so is the signal that ends it
(`SIGSYS`); what it returns is `did: …`, unless it returns a `Seen`, which is something harmless that may be expected.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Call = Callable[[], object]
SECONDS = 10  # for one attempt
libc = ctypes.CDLL(None, use_errno=True)
context: dict[str, Any] = {}  # inside: what the test tells about the host


class Seen(str):
    """Something that was seen, and that the table may name as expected."""


@dataclass(frozen=True)
class Attempt:
    """`expected`: every result that counts as refused."""

    name: str
    expected: tuple[str, ...]
    call: Call


ATTEMPTS: dict[str, Attempt] = {}


def attempt(name: str, *expected: str) -> Callable[[Call], Call]:
    """Enter a function into the table."""

    def enter(call: Call) -> Call:
        assert name not in ATTEMPTS, name
        ATTEMPTS[name] = Attempt(name, expected, call)
        return call

    return enter


def system_call(name: str, *arguments: object) -> int:
    """syscall(2) by name; ENOSYS where this architecture has no such call."""
    number = context["numbers"].get(name, -1)
    if number < 0:
        raise OSError(errno.ENOSYS, name)
    return checked(libc.syscall(ctypes.c_long(number), *map(_word, arguments)), name)


def _word(value: object) -> object:
    return ctypes.c_long(value) if isinstance(value, int) else value


def checked(result: int, name: str = "") -> int:
    """The result of a libc function, or its OSError."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
    return result


def table(prefix: str, expected: tuple[str, ...], calls: dict[str, tuple[object, ...]]) -> None:
    """One attempt a system call."""
    for name, arguments in calls.items():
        attempt(f"{prefix}: {name}", *expected)(lambda name=name, arguments=arguments: system_call(name, *arguments))


def result(call: Call) -> str:
    """What came of one attempt, made in a child of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(SECONDS)
        try:
            value = call()
            said = str(value) if isinstance(value, Seen) else f"did: {value!r}"[:300]
        except OSError as error:
            said = errno.errorcode.get(error.errno or 0, repr(error))
        except BaseException as error:
            said = f"failed: {error!r}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said


def main() -> None:
    """`registry.main()` inside: make every attempt that the context names; print the results as JSON."""
    with open(sys.argv[1], encoding="utf-8") as file:
        context.update(json.load(file))
    print(json.dumps({name: result(entry.call) for name, entry in ATTEMPTS.items()}))
