# ruff: noqa: PTH101, PTH104, PTH108, PTH115, PTH116, PTH208, PTH211, SIM905  (runs inside: no pathlib there)

"""Reaching the host's files, through every path that has ever led there."""

from __future__ import annotations

import os

from tests.sandbox.escape.registry import Seen, attempt, context

GONE = ("ENOENT",)
CLOSED = ("EACCES", "EPERM", "ENOENT")
READ_ONLY = ("EROFS", "EACCES", "EPERM")


def read(path: str, size: int = 4096) -> bytes:
    """Some of a file."""
    with open(path, "rb", buffering=0) as file:
        return file.read(size)


def write(path: str, text: bytes = b"1\n") -> int:
    """Overwrite a file."""
    with open(path, "wb", buffering=0) as file:
        return file.write(text) or 0


def _secret(prefix: str) -> None:
    name = f"read a host file through {prefix or 'its own path'}"
    attempt(name, "ENOENT", "EACCES", "ENOTDIR")(lambda: read(prefix + context["secret"]))


for start in ("", "/proc/1/root", "/proc/1/cwd/..", "/proc/self/root/../..", "/oldroot", "/newroot", "/tmp/oldroot"):
    _secret(start)
_secret("/proc/self/cwd/../../../../../../..")
_secret("/proc/thread-self/root")
_secret("/../../..")

for part in ("environ", "mem", "maps", "smaps", "auxv", "io", "stack", "syscall", "personality", "pagemap", "timers"):
    attempt(f"read /proc/1/{part}", *CLOSED)(lambda part=part: read(f"/proc/1/{part}"))
for part in ("fd", "map_files", "fdinfo"):
    attempt(f"list /proc/1/{part}", *CLOSED)(lambda part=part: os.listdir(f"/proc/1/{part}"))
for part in ("root", "cwd", "exe", "ns/mnt", "ns/user", "ns/net", "ns/pid"):
    attempt(f"follow /proc/1/{part}", *CLOSED)(lambda part=part: os.readlink(f"/proc/1/{part}"))
attempt("list /proc/1/root", *CLOSED)(lambda: os.listdir("/proc/1/root"))
attempt("write /proc/1/mem", *CLOSED)(lambda: write("/proc/1/mem"))
attempt("read pid 1's program", *CLOSED)(lambda: read("/runner"))
attempt("replace pid 1's program", *READ_ONLY)(lambda: os.rename("/runner", "/runner2"))
attempt("overwrite pid 1's program", *READ_ONLY, "ETXTBSY")(lambda: write("/runner"))

for place in ("/etc/shadow", "/etc/hostname", "/etc/machine-id", "/root/.ssh", "/root/.bashrc", "/var/log", "/boot"):
    attempt(f"see {place}", *GONE, "EACCES")(lambda place=place: os.stat(place))
for place in ("/sys", "/sys/fs/cgroup", "/sys/kernel/debug", "/run/systemd", "/run/dbus", "/run/.sia", "/mnt", "/srv"):
    attempt(f"see {place}", *GONE, "EACCES")(lambda place=place: os.stat(place))
attempt("see other homes", "only our own")(  # and the empty way to the interpreter, where that lies in a home
    lambda: Seen("only our own") if sorted(os.listdir("/home")) == context["homes"] else os.listdir("/home")
)
attempt("see the host's users", "made up")(
    lambda: Seen("made up") if read("/etc/passwd").count(b"\n") == 3 else read("/etc/passwd")
)
attempt("see host processes", "only our own")(
    lambda: (
        Seen("only our own") if max(int(n) for n in os.listdir("/proc") if n.isdigit()) < 2000 else os.listdir("/proc")
    )
)
attempt("see the host's variables", "none")(
    lambda: found if (found := [n for n in os.environ if n in context["variables"]]) else Seen("none")
)

for name in ("kcore", "kmsg", "sysrq-trigger", "kpagecount", "kpageflags", "timer_list", "sched_debug", "vmallocinfo"):
    attempt(f"read /proc/{name}", *CLOSED, "EIO")(lambda name=name: read(f"/proc/{name}"))
for name in ("sysrq-trigger", "mtrr", "irq/default_smp_affinity", "acpi/wakeup", "scsi/scsi", "bus/pci/00/00.0"):
    attempt(f"write /proc/{name}", *READ_ONLY, "ENOENT", "EISDIR", "ENOTDIR", "EIO")(
        lambda name=name: write(f"/proc/{name}")
    )
for name in (
    "kernel/core_pattern kernel/modprobe kernel/hostname kernel/domainname kernel/sysrq kernel/ns_last_pid "
    "kernel/yama/ptrace_scope kernel/unprivileged_bpf_disabled vm/overcommit_memory vm/drop_caches "
    "fs/suid_dumpable fs/binfmt_misc/register net/ipv4/ip_forward net/ipv4/ping_group_range "
    "user/max_user_namespaces kernel/shmmax"
).split():
    attempt(f"write /proc/sys/{name}", *READ_ONLY, "ENOENT")(lambda name=name: write(f"/proc/sys/{name}"))
for name, text in (("uid_map", b"0 0 1"), ("gid_map", b"0 0 1"), ("setgroups", b"allow"), ("oom_score_adj", b"-1000")):
    attempt(f"write /proc/self/{name}", *CLOSED, "EINVAL")(lambda n=name, t=text: write(f"/proc/self/{n}", t))
attempt("write /proc/1/oom_score_adj", *CLOSED)(lambda: write("/proc/1/oom_score_adj", b"1000"))

for place in (
    "/",
    "/usr/bin",
    "/etc",
    "/proc/sys",
    "/dev",
    "/home",
    "/root",
    "/usr/lib",
    "/probe",
):
    attempt(f"create a file in {place}", *READ_ONLY, "ENOENT")(lambda place=place: write(f"{place}/new-file"))
for place in ("/etc/passwd", "/etc/ld.so.cache", "/usr/bin/env", "/bin/sh", "/probe/tests/sandbox/escape/probe.py"):
    attempt(f"overwrite {place}", *READ_ONLY, "ETXTBSY")(lambda place=place: write(place))
attempt("change the mode of /usr/bin/env", *READ_ONLY)(lambda: os.chmod("/usr/bin/env", 0o6755))
attempt("change the times of /usr/bin/env", *READ_ONLY)(lambda: os.utime("/usr/bin/env"))
attempt("remove /usr/bin/env", *READ_ONLY)(lambda: os.unlink("/usr/bin/env"))
attempt("rename /usr away", *READ_ONLY, "EBUSY", "EXDEV")(lambda: os.rename("/usr", "/usr2"))
attempt("hard link of a host file", "EXDEV", *READ_ONLY)(lambda: os.link("/usr/bin/env", "/app/env"))
attempt("hard link of what the kernel shows", "EXDEV", *READ_ONLY)(lambda: os.link("/proc/self/exe", "/app/exe"))
attempt("append to a file of a lower layer that is root's", *READ_ONLY, "EOVERFLOW", "ENOENT")(
    lambda: os.close(os.open("/app/rootish", os.O_APPEND | os.O_WRONLY))
)


@attempt("reopen a read-only descriptor for writing", *READ_ONLY, "ETXTBSY")
def _reopen() -> object:
    descriptor = os.open("/usr/bin/env", os.O_RDONLY)
    return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)


@attempt("overwrite our own interpreter (CVE-2019-5736)", *READ_ONLY, "ETXTBSY")
def _self_exe() -> object:
    return os.open("/proc/self/exe", os.O_WRONLY | os.O_TRUNC)


@attempt("climb out with a directory descriptor and ..", "stays inside")
def _climb() -> object:
    descriptor = os.open("/app", os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(64):
        descriptor = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
    inside, root = os.fstat(descriptor), os.stat("/")
    return Seen("stays inside") if (inside.st_dev, inside.st_ino) == (root.st_dev, root.st_ino) else inside


@attempt("follow a symlink to the host's root", "ENOENT")
def _symlink() -> object:
    os.symlink("/oldroot" + context["secret"], "/app/way-out")
    return read("/app/way-out")
