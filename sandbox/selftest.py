"""`sia doctor --selftest`: the short form of the escape, limit and kill suites, on the user's own machine."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox import usage
from sandbox.doctor import Finding, prove
from sandbox.errors import SiaError
from sandbox.host import Host
from sandbox.process import Outcome, Sandbox
from sandbox.spec import Limits, Overlay, SandboxSpec

REPORT = "please report this with the kernel's version; until it is explained, run nothing that you do not trust here"
TIMEOUT = 60.0  # seconds for one proof

# Tried inside, by number where no library has it: prints what was not refused.
CALLS = r"""
import ctypes, errno, os, platform, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, result):
    if result >= 0: print(name)
refused("mount", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
refused("umount", libc.umount2(b"/proc/sys", 2))
refused("chroot", libc.chroot(b"/tmp"))
refused("setuid", libc.setuid(0))
refused("unshare", libc.unshare(0x10000000))
refused("ptrace", libc.ptrace(16, 1, None, None))
refused("personality", libc.personality(0x0040000))
refused("TIOCSTI", libc.ioctl(0, 0x5412, b"x"))
numbers = {"bpf": 321, "keyctl": 250, "perf_event_open": 298, "userfaultfd": 323, "process_vm_readv": 310}
numbers |= {"kexec_load": 246, "init_module": 175, "open_by_handle_at": 304}
common = {"io_uring_setup": 425, "pidfd_getfd": 438, "clone3": 435, "open_tree": 428, "fsopen": 430, "move_mount": 429}
for name, number in (common | (numbers if platform.machine() == "x86_64" else {})).items():
    result = libc.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0)
    if result >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS): print(name)  # another error: it got in
for name, kind in (("AF_VSOCK", 1), ("AF_PACKET", 3), ("AF_ALG", 5), ("AF_INET", 3)):
    try: socket.socket(getattr(socket, name), kind); print(name)
    except (OSError, AttributeError): pass
for path in ("/usr/x", "/dev/x", "/x", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
    try: open(path, "w"); print("writing", path)
    except OSError: pass
for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/root/etc", "/proc/kcore", "/runner"):
    try: open(path, "rb").read(1); print("reading", path)
    except OSError: pass
"""


@dataclass(frozen=True)
class Proof:
    """`run` returns what is broken, or None."""

    promise: str
    run: Callable[[Host, Path], str | None]
    fix: str = REPORT


def selftest(state: Path) -> list[Finding]:
    """All proofs in turn, each with files of its own below `state`."""
    findings: list[Finding] = []
    with Host.detect(state) as host, tempfile.TemporaryDirectory(prefix="selftest-", dir=state) as directory:
        top = Path(directory)
        top.chmod(0o711)
        (top / "prove").mkdir(mode=0o711)
        findings += prove(host, top / "prove")
        for number, proof in enumerate(PROOFS):
            place = top / str(number)
            place.mkdir(mode=0o711)
            try:
                broken = proof.run(host, place)
            except SiaError as error:
                broken = f"{error.where}: {error.what}".lstrip(": ")
            finally:
                host.remove(place)
            if broken:
                findings.append(Finding("promise", "fail", f"broken: {proof.promise}: {broken}", proof.fix))
            else:
                findings.append(Finding("promise", "ok", proof.promise))
    return findings


def _run(host: Host, spec: SandboxSpec) -> tuple[Outcome, str]:
    """The outcome, and what was said."""
    read, write = os.pipe()
    with open(read, "rb") as output, Sandbox.start(host, spec, stdout=write, stderr=write) as sandbox:
        os.close(write)
        said = output.read(1 << 16).decode("utf-8", "replace").strip()
        outcome = sandbox.wait(TIMEOUT)
    assert outcome is not None
    return outcome, outcome.setup_error or said


def _shell(script: str, **fields: object) -> SandboxSpec:
    spec = SandboxSpec(("sh", "-c", script), "/tmp", limits=Limits(seconds=TIMEOUT / 2))
    return replace(spec, **fields)  # type: ignore[arg-type]


def _app(host: Host, place: Path, name: str, *lowers: Path) -> Overlay:
    lower = place / "lower"
    if not lower.exists():
        lower.mkdir()
        host.own(lower)
    return Overlay("/app", (lower, *lowers), *host.make_upper(place, name))


def _calls(host: Host, place: Path) -> str | None:
    python = Path(sys.executable)
    outcome, said = _run(host, _shell("", command=(sys.executable, "-I", "-S", "-c", CALLS), python=python))
    return said or (None if outcome.exit_code == 0 else str(outcome))


def _network(host: Host, place: Path) -> str | None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2); print('yes')"
        )
        command = (sys.executable, "-I", "-S", "-c", f"{code}\nexcept OSError: pass")
        _, said = _run(host, _shell("", command=command, python=Path(sys.executable)))
    return f"the host's loopback answers: {said}" if said else None


def _symlinks(host: Host, place: Path) -> str | None:
    victim = place / "victim"
    victim.mkdir()
    victim.chmod(0o777)
    first = _app(host, place, "first")
    names = "tmp etc root data proc dev run home"
    plant = f"for n in {names}; do ln -s {victim} $n; ln -s /oldroot{victim} $n.old; done"
    _, said = _run(host, _shell(plant, workdir="/app", overlays=(first,)))
    again = _app(host, place, "again", first.upper)
    _run(host, _shell("touch */x; exit 0", workdir="/app", overlays=(again,)))
    found = [path.name for path in victim.iterdir()]
    return f"a planted symlink was followed: {found}" if found else said or None


def _eof(host: Host, place: Path) -> str | None:
    read, write = os.pipe()
    with open(read, "rb") as output, Sandbox.start(host, _shell("exec >&-; sleep 60"), stdout=write) as sandbox:
        os.close(write)
        output.read()
        return "the command has ended with it" if sandbox.wait(0) else None


def _kill(host: Host, place: Path) -> str | None:
    """Stopped, deaf, daemonised and pipe-holding children."""
    script = "trap '' TERM; (setsid sleep 600 &); sh -c 'kill -STOP $$' & (sleep 601 &) & echo up; sleep 602"
    read, write = os.pipe()
    sandbox = Sandbox.start(host, _shell(script), stdout=write)
    os.close(write)
    with open(read, "rb") as output:
        output.readline()
        pids = usage.tree(sandbox.pid)
        started = time.monotonic()
        sandbox.kill()
        took = time.monotonic() - started
    left = [pid for pid in pids if Path(f"/proc/{pid}/ns/pid").exists()]
    return f"{len(left)} processes are left" if left else f"it took {took:.1f} s" if took > 1 else None


def _orphans(host: Host, place: Path) -> str | None:
    """The spawner dies, as it does with its supervisor."""
    with Host.detect(place / "other") as other:
        sandbox = Sandbox.start(other, _shell("sleep 600"))
        os.kill(other.launcher.pid, 9)
        return None if sandbox.wait(5) else "a sandbox outlived its supervisor for 5 s"


def _limit(name: str, script: str, **bounds: object) -> Callable[[Host, Path], str | None]:
    """A script that must be ended by the limit `name`."""

    def run(host: Host, place: Path) -> str | None:
        limits = replace(Limits(seconds=30), **bounds)  # type: ignore[arg-type]
        spec = _shell(script, workdir="/app", overlays=(_app(host, place, "app"),), limits=limits)
        outcome, said = _run(host, spec)
        return None if outcome.limit == name else f"not ended by it: {outcome} {said}"[:300]

    return run


def _full(host: Host, place: Path) -> str | None:
    script = "head -c 9000000 /dev/zero > /tmp/x && echo /tmp; head -c 9000000 /dev/zero > /dev/shm/x && echo /dev/shm"
    _, said = _run(host, _shell(f"({script}) 2>/dev/null", limits=Limits(seconds=30, tmp_mb=4, shm_mb=4)))
    return said or None


def _forks(host: Host, place: Path) -> str | None:
    script = "i=0; while [ $i -lt 60 ]; do sleep 9 & i=$((i+1)); done; echo all"
    _, said = _run(host, _shell(f"{script} 2>&1 | tail -n 1", limits=Limits(seconds=8, processes=20)))
    return "60 processes where 20 are allowed" if said == "all" else None


CGROUP = "run in a systemd user session, or with a delegated cgroup v2 subtree; `sia doctor` says what is used now"
DISK = "set SIA_HOME to a directory on a local disk"
EAT = "x=$(head -c 300000000 /dev/zero | tr '\\0' a); sleep 9"
PROOFS = (
    Proof("system calls, devices and files that lead out are refused", _calls),
    Proof("nothing answers on the network, the host's loopback included", _network),
    Proof("symlinks planted in a layer are not followed when it is mounted again", _symlinks, DISK),
    Proof("what is closed inside is closed outside", _eof),
    Proof("stopped, deaf and daemonised children are killed", _kill),
    Proof("nothing outlives its supervisor", _orphans),
    Proof("memory is bounded", _limit("memory", EAT, memory_mb=96), CGROUP),
    Proof("disks are bounded", _limit("disk", "head -c 20000000 /dev/zero > x; sleep 9", disk_mb=4), DISK),
    Proof(
        "files are counted",
        _limit("inodes", "i=0; while [ $i -lt 300 ]; do : > $i; i=$((i+1)); done", inodes=100),
        DISK,
    ),
    Proof("time is bounded", _limit("seconds", "sleep 60", seconds=0.3)),
    Proof("processes are bounded", _forks),
    Proof("/tmp and /dev/shm are bounded", _full),
)
