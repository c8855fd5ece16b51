# ruff: noqa: PTH101, PTH116  (runs inside: no pathlib there)

"""Becoming more than one is."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import struct
import subprocess

from tests.sandbox.escape.registry import Seen, attempt, checked, libc, system_call

NO = ("EPERM", "EACCES", "EINVAL")

attempt("setuid(0)", *NO)(lambda: os.setuid(0))
attempt("setgid(0)", *NO)(lambda: os.setgid(0))
attempt("setreuid(0, 0)", *NO)(lambda: os.setreuid(0, 0))
attempt("setresuid(0, 0, 0)", *NO)(lambda: os.setresuid(0, 0, 0))
attempt("setresuid(65534)", *NO)(lambda: os.setresuid(65534, 65534, 65534))
attempt("setgroups", *NO)(lambda: os.setgroups([0]))
attempt("setfsuid(0)", "stays")(lambda: Seen("stays") if libc.setfsuid(0) == libc.setfsuid(0) != 0 else "changed")
attempt("chown to root", *NO)(lambda: _chown(0))
attempt("chown to somebody", *NO)(lambda: _chown(65534))
attempt("regain capabilities by capset", *NO)(
    lambda: system_call("capset", struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0xFFFFFFFF] * 6))
)
attempt("raise an ambient capability", *NO)(lambda: checked(libc.prctl(47, 2, 21, 0, 0)))
attempt("drop from the bounding set", *NO)(lambda: checked(libc.prctl(24, 21, 0, 0, 0)))
attempt("securebits", *NO)(lambda: checked(libc.prctl(28, 1, 0, 0, 0)))
attempt("forget no_new_privs", *NO)(lambda: checked(libc.prctl(38, 0, 0, 0, 0)))
attempt("switch seccomp off", *NO)(lambda: checked(libc.prctl(22, 0, 0, 0, 0)))
attempt("a looser seccomp filter on top", "still EPERM")(lambda: _looser())
attempt("move our memory map (PR_SET_MM)", *NO)(lambda: checked(libc.prctl(35, 13, 1, 0, 0)))
attempt("nice -20", *NO)(lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
attempt("real-time scheduling", *NO)(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
attempt("real-time disk priority", *NO)(lambda: system_call("ioprio_set", 1, 0, 1 << 13))
for name in ("NPROC", "NOFILE", "FSIZE", "CORE"):
    attempt(f"raise the limit {name}", "EPERM")(lambda name=name: _raise(name))


def _chown(uid: int) -> object:
    with open("/app/owned", "w"):
        pass
    return os.chown("/app/owned", uid, uid)


def _raise(name: str) -> object:
    """Python makes a ValueError of it."""
    number = getattr(resource, f"RLIMIT_{name}")
    unlimited = 2**64 - 1
    return system_call("prlimit64", 0, number, struct.pack("QQ", unlimited, unlimited), 0)


def _looser() -> object:
    """Allow everything, and then try what was denied."""
    instructions = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(instructions)
    program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(buffer))
    checked(libc.prctl(22, 2, program, 0, 0))
    try:
        return system_call("unshare", 0x10000000)
    except OSError as error:
        return Seen("still EPERM") if error.errno == 1 else error


@attempt("capabilities that are left", "none")
def _capabilities() -> object:
    with open("/proc/self/status", encoding="ascii") as file:
        sets = dict(line.split(":\t") for line in file.read().splitlines() if line.startswith("Cap"))
    return Seen("none") if all(int(value, 16) == 0 for value in sets.values()) else sets


@attempt("seccomp and no_new_privs", "on")
def _status() -> object:
    with open("/proc/self/status", encoding="ascii") as file:
        text = file.read()
    return Seen("on") if "Seccomp:\t2" in text and "NoNewPrivs:\t1" in text else text


@attempt("run a setuid copy of a shell", "nothing gained")
def _setuid() -> object:
    shutil.copy("/bin/sh", "/app/shell")
    os.chmod("/app/shell", 0o6755)
    return _gained(["/app/shell", "-c", "id -u; id -g"])


@attempt("run the host's setuid programs", "nothing gained")
def _host_setuid() -> object:
    for name in ("su", "mount", "sudo", "newgrp", "passwd", "newuidmap"):
        path = shutil.which(name, path="/usr/bin:/bin")
        if path and os.stat(path).st_mode & 0o4000:
            libc.setenv(b"LD_PRELOAD", b"", 1)
            subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return _gained(["/bin/sh", "-c", "id -u; id -g"])


def _gained(argv: list[str]) -> object:
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return Seen("nothing gained") if said == [str(os.getuid()), str(os.getgid())] else said


@attempt("file capabilities", *NO, "EOPNOTSUPP")
def _file_capabilities() -> object:
    shutil.copy("/bin/sh", "/app/capable")
    value = struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0)
    return os.setxattr("/app/capable", "security.capability", value)


for name in ("trusted.overlay.opaque", "trusted.overlay.redirect", "security.ima", "security.evm"):
    attempt(f"set the attribute {name}", *NO, "EOPNOTSUPP", "ENODATA")(
        lambda name=name: os.setxattr("/app", name, b"y")
    )
