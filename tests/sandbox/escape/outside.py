# ruff: noqa: PTH103, PTH108, PTH116, PTH208  (runs inside: no pathlib there)

"""Signals, inter-process communication and handles that would reach processes outside; and sized places."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import stat
import time

from tests.sandbox.escape.registry import Seen, attempt, checked, context, libc, system_call

NOBODY = ("ESRCH",)
attempt("kill the supervisor", *NOBODY)(lambda: os.kill(context["pid"], signal.SIGKILL))
attempt("kill the supervisor's group", *NOBODY, "EPERM")(lambda: os.killpg(context["group"], signal.SIGKILL))
attempt("kill the spawner", *NOBODY)(lambda: os.kill(context["spawner"], signal.SIGKILL))
attempt("tgkill the supervisor", *NOBODY)(lambda: system_call("tgkill", context["pid"], context["pid"], 9))
attempt("open the supervisor's pidfd", *NOBODY, "EINVAL")(lambda: os.pidfd_open(context["pid"]))
attempt("queue a signal for the supervisor", *NOBODY, "EPERM")(
    lambda: system_call("rt_sigqueueinfo", context["pid"], 10, ctypes.create_string_buffer(128))
)
attempt("limits of the supervisor", *NOBODY)(
    lambda: system_call("prlimit64", context["pid"], 7, 0, ctypes.create_string_buffer(16))
)
attempt("priority of the supervisor", *NOBODY)(lambda: os.setpriority(os.PRIO_PROCESS, context["pid"], 19))
attempt("affinity of the supervisor", *NOBODY)(lambda: os.sched_setaffinity(context["pid"], {0}))
attempt("session of the supervisor", *NOBODY)(lambda: os.getsid(context["pid"]))
attempt("look at the supervisor in /proc", "ENOENT")(lambda: os.listdir(f"/proc/{context['pid']}"))
attempt("signals by F_SETOWN on a pipe of the supervisor", *NOBODY)(
    lambda: fcntl.fcntl(1, fcntl.F_SETOWN, context["pid"])
)
attempt("the host's System V memory", "ENOENT")(lambda: checked(libc.shmget(context["key"], 1, 0)))
attempt("the host's message queue", "ENOENT")(lambda: checked(libc.mq_open(context["queue"].encode(), os.O_RDWR)))
attempt("the host's POSIX memory", "ENOENT")(lambda: os.stat("/dev/shm" + context["queue"]))


@attempt("kill and stop pid 1", "it lives")
def _pid_1() -> object:
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV, signal.SIGQUIT):
        os.kill(1, number)
    time.sleep(0.02)
    with open("/proc/1/stat", encoding="ascii") as file:
        return Seen("it lives") if file.read().split()[2] in "SR" else "stopped"


@attempt("signals by a fatal SIGIO on the engine socket", *NOBODY)
def _sigio() -> object:
    return fcntl.fcntl(5, fcntl.F_SETOWN, context["spawner"])


@attempt("credentials forged on the engine socket", "EPERM", "EINVAL")
def _forged() -> object:
    ours = socket.socket(fileno=os.dup(5))
    content = (ctypes.c_int * 3)(context["small_pid"], 0, 0)
    return ours.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, bytes(content))])


@attempt("descriptors that come with the engine socket", "none")
def _scm_rights() -> object:
    ours = socket.socket(fileno=os.dup(5))
    ours.settimeout(2)
    _, ancillary, _, _ = ours.recvmsg(100, 4096)
    return ancillary or Seen("none")


@attempt("a descriptor of pid 1 through /proc", "EACCES", "EPERM")
def _proc_fd() -> object:
    return os.open("/proc/1/fd/3", os.O_RDWR)


def _fill(directory: str) -> object:
    """Write until the size is reached."""
    with open(f"{directory}/filler", "wb", buffering=0) as file:
        try:
            for _ in range(400):
                file.write(bytes(1 << 20))
        finally:
            os.unlink(file.name)
    return "400 MiB"


for place in ("/tmp", "/dev/shm", "/run", "/home/agent"):
    attempt(f"fill {place}", "ENOSPC", "EACCES")(lambda place=place: _fill(place))
attempt("fill the sandbox's root", "EROFS", "EACCES")(lambda: _fill("/"))

for name in ("redirect", "opaque", "origin", "metacopy", "whiteout", "impure", "nlink", "upper", "protattr"):
    attempt(f"forge user.overlay.{name}", "EPERM", "EOPNOTSUPP", "EACCES", "not the layer's own")(
        lambda name=name: _forge(name)
    )


def _forge(name: str) -> object:
    """Newer kernels escape the name (user.overlay.overlay.…): the test looks at the upper afterwards."""
    os.makedirs("/app/forged", exist_ok=True)
    os.setxattr("/app/forged", f"user.overlay.{name}", b"/../../../../etc" if name == "redirect" else b"y")
    return Seen("not the layer's own")


attempt("a whiteout by hand", "EPERM")(lambda: os.mknod("/app/whiteout", stat.S_IFCHR, 0))
attempt("a whiteout by rename", "EINVAL", "EPERM")(lambda: _whiteout())
attempt("open a file of the upper by handle", "EPERM")(
    lambda: system_call("open_by_handle_at", -100, ctypes.create_string_buffer(128), 0)
)


def _whiteout() -> object:
    with open("/app/renamed", "w"):
        pass
    return system_call("renameat2", -100, b"/app/renamed", -100, b"/app/renamed2", 4)
