# ruff: noqa: SIM905  (runs inside: no pathlib there)

"""Calls into parts of the kernel that nobody inside needs, and ways around the filter."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform

from tests.sandbox.escape.registry import attempt, libc, system_call, table

DENIED = ("EPERM",)
ZEROS: tuple[object, ...] = (0, 0, 0, 0, 0, 0)
NAMES = (
    "process_vm_readv process_vm_writev pidfd_getfd kcmp ptrace bpf perf_event_open userfaultfd io_uring_setup "
    "io_uring_enter io_uring_register keyctl add_key request_key syslog acct quotactl quotactl_fd kexec_load "
    "init_module finit_module delete_module swapon swapoff reboot settimeofday clock_settime adjtimex "
    "clock_adjtime vhangup fanotify_init sethostname setdomainname move_pages mbind set_mempolicy get_mempolicy "
    "migrate_pages name_to_handle_at open_by_handle_at lsm_set_self_attr"
).split()
OLD = ["iopl", "ioperm", "modify_ldt", "uselib", "kexec_file_load", "_sysctl", "lookup_dcookie", "nfsservctl"]
table("filtered", DENIED, dict.fromkeys(NAMES, ZEROS))
table("filtered, where it exists", ("EPERM", "ENOSYS"), dict.fromkeys(OLD, ZEROS))
attempt("personality: no randomisation", *DENIED)(lambda: system_call("personality", 0x0040000))
attempt("personality: readable means executable", *DENIED)(lambda: system_call("personality", 0x0400000))
attempt("ptrace: attach to pid 1", *DENIED)(lambda: system_call("ptrace", 16, 1, 0, 0))
attempt("ptrace: seize the parent", *DENIED)(lambda: system_call("ptrace", 0x4206, os.getppid(), 0, 0))
attempt("ptrace: be traced", *DENIED)(lambda: system_call("ptrace", 0, 0, 0, 0))
attempt("pidfd_getfd: of pid 1", *DENIED)(lambda: system_call("pidfd_getfd", os.pidfd_open(1), 0, 0))
attempt("io_uring: a ring", *DENIED)(lambda: system_call("io_uring_setup", 8, ctypes.create_string_buffer(120)))
attempt("keyring: the user's session", *DENIED)(lambda: system_call("keyctl", 0, -4, 0, 0, 0))
attempt("a thread with descriptors of its own", *DENIED)(lambda: system_call("clone", 0x10000, 0, 0, 0, 0))
attempt("close_range: descriptors of its own", *DENIED)(lambda: system_call("close_range", 900, 900, 2))
attempt("a number beyond the table", "ENOSYS")(lambda: _raw(100_000))
attempt("a number with high bits", "ENOSYS", "EPERM", "SIGSYS")(lambda: _raw(1 << 32 | 272))

if platform.machine() == "x86_64":
    attempt("x32: getpid", "SIGSYS")(lambda: _raw(0x40000000 | 39))
    attempt("x32: unshare", "SIGSYS")(lambda: _raw(0x40000000 | 272, 0x10000000))
    attempt("x32: socket", "SIGSYS")(lambda: _raw(0x40000000 | 41, 40, 1, 0))
    attempt("i386: getpid by int 0x80", "SIGSYS")(lambda: _int80(20))
    attempt("i386: unshare by int 0x80", "SIGSYS")(lambda: _int80(310))


def _raw(number: int, *arguments: int) -> object:
    from tests.sandbox.escape.registry import checked

    return checked(libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)))


def _int80(number: int) -> object:
    """mov eax, number; int 0x80; ret."""
    code = b"\xb8" + number.to_bytes(4, "little") + b"\xcd\x80\xc3"
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
