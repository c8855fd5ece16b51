"""The seccomp filter: a denylist (flatpak's, and what came after it) as BPF for `bwrap --add-seccomp-fd`."""

# ruff: noqa: SIM905  (as lists, so many words fill a page)
from __future__ import annotations

import errno
import functools
import os
import socket
from typing import Any

from sandbox.errors import CannotIsolate

# Refused with EPERM.
DENIED = (
    "syslog acct modify_ldt uselib quotactl quotactl_fd add_key keyctl request_key move_pages mbind get_mempolicy "
    "set_mempolicy migrate_pages set_mempolicy_home_node unshare setns mount umount umount2 pivot_root chroot ptrace "
    "perf_event_open bpf userfaultfd kcmp process_vm_readv process_vm_writev pidfd_getfd open_by_handle_at "
    "name_to_handle_at io_uring_setup io_uring_enter io_uring_register kexec_load kexec_file_load init_module "
    "finit_module delete_module reboot swapon swapoff settimeofday clock_settime clock_adjtime adjtimex stime iopl "
    "ioperm vhangup nfsservctl lookup_dcookie fanotify_init sethostname setdomainname _sysctl "
    "lsm_set_self_attr"
).split()
MISSING = (  # ENOSYS, so that callers fall back: clone3 hides its flags behind a pointer, and the new mount API
    "clone3 open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr open_tree_attr"
).split()
NEW = {"lsm_set_self_attr": 459, "open_tree_attr": 467}  # the same number everywhere; not in every libseccomp
NAMESPACES = 0x7E020000  # CLONE_NEW*: user, pid, net, ipc, uts, cgroup, mount (time is not for clone)
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
THREAD, FILES = 0x10000, 0x400  # CLONE_*
UNSHARE_FILES = 2  # of close_range
SEGMENT = 4096  # bytes; a namespace has at most 4096 segments
TIOCSTI, TIOCLINUX = 0x5412, 0x541C


@functools.cache
def program(*, watched: bool = False) -> bytes:
    """The compiled filter. Foreign architectures and x32 are killed. Raises CannotIsolate without libseccomp.

    `watched`: nothing but a watchdog bounds memory, so segments of System V, which live on unseen where no process has
    them, are refused above one page (databases want a small one, as a lock).
    """
    try:
        import pyseccomp as seccomp
    except (ImportError, RuntimeError, OSError) as error:
        fix = "install libseccomp (Debian, Ubuntu: apt install libseccomp2)"
        raise CannotIsolate(f"libseccomp can't be loaded ({error})", fix=fix) from None
    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    rules.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
    for name in DENIED:
        _add(rules, seccomp.ERRNO(errno.EPERM), name)
    for name in MISSING:
        _add(rules, seccomp.ERRNO(errno.ENOSYS), name)
    _add_arguments(rules, seccomp)
    if watched:
        _add(rules, seccomp.ERRNO(errno.ENOSPC), "shmget", seccomp.Arg(1, seccomp.GT, SEGMENT))
    fd = os.memfd_create("seccomp")
    with os.fdopen(fd, "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _add(rules: Any, action: Any, name: str, *conditions: Any) -> None:
    number = _number(name)
    if number >= 0:  # else this architecture does not have it
        rules.add_rule(action, number, *conditions)


def _number(name: str) -> int:
    import pyseccomp as seccomp

    number = int(seccomp.resolve_syscall(seccomp.Arch.NATIVE, name))
    return NEW.get(name, number) if number == -1 else number


def _add_arguments(rules: Any, seccomp: Any) -> None:
    """Rules that look at arguments. Only the low 32 bits count where the kernel takes an int, so mask them."""
    denied, low = seccomp.ERRNO(errno.EPERM), 0xFFFFFFFF
    for bit in range(32):
        if NAMESPACES >> bit & 1:
            _add(rules, denied, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, 1 << bit, 1 << bit))
    # A thread with descriptors of its own: /proc/PID/fd, where the watchdogs look, would not show them.
    _add(rules, denied, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, THREAD | FILES, THREAD))
    _add(rules, denied, "close_range", seccomp.Arg(2, seccomp.MASKED_EQ, UNSHARE_FILES, UNSHARE_FILES))
    for request in (TIOCSTI, TIOCLINUX):
        _add(rules, denied, "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, low, request))
    _add(rules, denied, "personality", seccomp.Arg(0, seccomp.NE, 0))
    refused = seccomp.ERRNO(errno.EAFNOSUPPORT)
    for name in ("socket", "socketpair"):
        for family in range(64):
            if family not in FAMILIES:
                _add(rules, refused, name, seccomp.Arg(0, seccomp.MASKED_EQ, low, family))
