# ruff: noqa: PTH115, PTH208, SIM905  (runs inside: no pathlib there)

"""Devices: the few that are there, making others, and terminals."""

from __future__ import annotations

import fcntl
import os
import stat

from tests.sandbox.escape.registry import Seen, attempt, system_call

ALLOWED = {
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "tty",
    "pts",
    "ptmx",
    "shm",
    "fd",
    "stdin",
    "stdout",
    "stderr",
    "core",
}
TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD = 0x5412, 0x541C, 0x541D, 0x5423
REFUSED = ("EPERM", "EACCES", "EROFS")


@attempt("list /dev", "only the harmless")
def _list() -> object:
    more = set(os.listdir("/dev")) - ALLOWED - {"console"}
    return sorted(more) or Seen("only the harmless")


for name in (
    "mem kmem port kmsg kvm fuse vda sda nvme0n1 loop0 loop-control net/tun vsock vhost-vsock uinput input/event0 "
    "mapper/control dri/card0 snd/timer hpet rtc0 cuse userfaultfd ptp0 cpu/0/msr"
).split():
    attempt(f"open /dev/{name}", "ENOENT")(lambda name=name: os.open(f"/dev/{name}", os.O_RDWR))
for place in ("/app", "/tmp", "/dev", "/dev/shm"):
    for title, kind, number in (("memory", stat.S_IFCHR, (1, 1)), ("disk", stat.S_IFBLK, (254, 0))):
        attempt(f"mknod in {place}: the {title}", *REFUSED)(
            lambda place=place, kind=kind, n=number: os.mknod(f"{place}/device", kind | 0o666, os.makedev(*n))
        )
attempt("mknod in /app: a null device", *REFUSED)(lambda: os.mknod("/app/null", stat.S_IFCHR | 0o666, os.makedev(1, 3)))
attempt("open /dev/tty", "ENXIO", "EIO")(lambda: os.open("/dev/tty", os.O_RDWR))
attempt("open /dev/console", "ENOENT", "EACCES", "EPERM", "ENXIO", "EIO")(lambda: os.open("/dev/console", os.O_RDWR))


def _ioctl(request: int, *, pty: bool) -> object:
    """With a terminal of our own, or on whatever we were given."""
    if pty:
        _leader, follower = os.openpty()
        return system_call("ioctl", follower, request, b"x")
    failure: OSError | None = None
    for descriptor in range(3):
        try:
            return system_call("ioctl", descriptor, request, b"x")
        except OSError as error:
            failure = error
    assert failure is not None
    raise failure


for pty in (False, True):
    where = "a pty" if pty else "no terminal"
    attempt(f"TIOCSTI with {where}", "EPERM")(lambda pty=pty: _ioctl(TIOCSTI, pty=pty))
    attempt(f"TIOCSTI with high bits, {where}", "EPERM")(lambda pty=pty: _ioctl(TIOCSTI | 1 << 32, pty=pty))
    attempt(f"TIOCLINUX with {where}", "EPERM")(lambda pty=pty: _ioctl(TIOCLINUX, pty=pty))
attempt("TIOCCONS with a pty", "EPERM")(lambda: _ioctl(TIOCCONS, pty=True))


@attempt("the session is not the supervisor's", "a new one")
def _session() -> object:
    return Seen("a new one") if os.getsid(0) < 100 else os.getsid(0)


@attempt("inherited descriptors", "pipes, sockets, null")
def _inherited() -> object:
    for name in os.listdir("/proc/self/fd"):
        try:
            mode = os.fstat(int(name)).st_mode
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        harmless = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or target in ("/dev/null", "/proc/self/fd")
        if not harmless and not target.startswith("/proc/"):
            return name, target
    return Seen("pipes, sockets, null")


@attempt("number of inherited descriptors", "0 1 2 5")
def _number() -> object:
    there = [number for number in range(64) if _is_open(number)]
    return Seen(" ".join(map(str, there[:3] + [n for n in there if n == 5]))) if len(there) <= 6 else there


def _is_open(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError:
        return False
    return True
