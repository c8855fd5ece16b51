"""What a sandbox can't see and can't do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import doctor
from sandbox.errors import CannotIsolate
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Bind, SandboxSpec

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]


def test_every_promise_of_the_doctor(host: Host, tmp_path: Path) -> None:
    broken = [finding for finding in doctor.prove(host, tmp_path) if finding.state != "ok"]
    assert broken == []


def test_environment_holds_what_we_set(inside: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    _, text = inside("env; cat /proc/*/environ | tr '\\0' '\\n'; cat /proc/*/cmdline", env={"EXTRA": "1"})
    names = {line.partition("=")[0] for line in text.splitlines() if "=" in line}
    assert {"PATH", "HOME", "LANG", "TERM", "TMPDIR", "EXTRA"} <= names
    assert "s3cret" not in text


def test_pid_1_is_closed(inside: Callable) -> None:
    look = "cat /proc/1/$f; ls /proc/1/$f/"
    script = f"for f in environ mem maps fd root cwd exe; do ({look}) 2>/dev/null; done"
    _, text = inside(script + "; kill -9 1; kill -STOP 1; echo alive")
    assert text == "alive\n"


def test_no_network(inside: Callable) -> None:
    script = """
import socket
for address in (("127.0.0.1", 22), ("169.254.169.254", 80), ("1.1.1.1", 53)):
    try:
        socket.create_connection(address, 1)
        print("connected", address)
    except OSError:
        pass
print(socket.if_nameindex())
"""
    _, text = inside(script, python=True)
    assert text == "[(1, 'lo')]\n"


SYSCALLS = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    return errno.errorcode.get(ctypes.get_errno()) if libc.syscall(number, *arguments) < 0 else "ALLOWED"
calls = {"unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "ptrace": 101,
    "bpf": 321, "userfaultfd": 323, "kcmp": 312, "process_vm_readv": 310, "pidfd_getfd": 438, "keyctl": 250,
    "add_key": 248, "open_by_handle_at": 304, "io_uring_setup": 425, "perf_event_open": 298, "syslog": 103,
    "acct": 163, "quotactl": 179, "kexec_load": 246, "init_module": 175, "swapon": 167, "iopl": 172, "reboot": 169}
for name, number in calls.items():
    got = call(number, 0, 0, 0, 0, 0)
    if got != "EPERM": print(name, got)
missing = {"clone3": 435, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "mount_setattr": 442}
for name, number in missing.items():
    got = call(number, 0, 0, 0, 0, 0)
    if got != "ENOSYS": print(name, got)
for flag in (0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x00020000):
    got = call(56, flag | 17, 0, 0, 0, 0)
    if got == "ALLOWED": os._exit(0)
    if got != "EPERM": print("clone", hex(flag), got)
for family in (socket.AF_VSOCK, socket.AF_PACKET, socket.AF_ALG, 9, 44, 45, socket.AF_ALG | 1 << 32):
    got = call(41, ctypes.c_long(family), 1, 0)
    if got != "EAFNOSUPPORT": print("socket", family, got)
for request in (0x5412, 0x541C, 0x5412 | 1 << 32):
    got = call(16, 0, ctypes.c_ulong(request), b"x")
    if got != "EPERM": print("ioctl", request, got)
for kind in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
    socket.socket(kind, socket.SOCK_STREAM).close()
socket.socketpair()
os.fork() or os._exit(0)
os.wait()
print("done")
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86_64")
def test_system_calls_are_filtered(inside: Callable) -> None:
    outcome, text = inside(SYSCALLS, python=True)
    assert (text, outcome.exit_code) == ("done\n", 0)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 is of x86_64")
def test_foreign_system_calls_kill(inside: Callable) -> None:
    outcome, _ = inside("import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39); print('survived')", python=True)
    assert outcome.signal == 31  # SIGSYS


def test_host_files_are_hidden(inside: Callable, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    script = (
        f"cat {secret} /etc/shadow /etc/hostname /proc/1/root{secret}; ls /home /root /var /mnt /work; cat /etc/passwd"
    )
    _, text = inside(script)
    assert "s3cret" not in text
    assert text.count("x:") == 3


def test_setuid_files_of_the_upper_are_nobodys(inside: Callable, overlay: Callable) -> None:
    app = overlay()
    outcome, _ = inside("cp /bin/sh sh; chmod 6755 sh", workdir="/app", overlays=(app,))
    assert outcome.exit_code == 0
    assert (app.upper / "sh").stat().st_uid == (61001 if os.geteuid() == 0 else os.getuid())


def test_symlinks_planted_in_a_layer_are_not_followed(inside: Callable, overlay: Callable, tmp_path: Path) -> None:
    """The class of CVE-2026-87766: an instance plants symlinks, and its layer is mounted again."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o777)
    victim.chmod(0o777)
    first = overlay("/app")
    script = f"for n in tmp etc root data proc dev app run; do ln -s {victim} $n; done; ln -s /oldroot{victim} old"
    assert inside(script, workdir="/app", overlays=(first,))[0].exit_code == 0
    again = overlay("/app", lowers=(*first.lowers, first.upper))
    outcome, text = inside("ls -l; echo x > tmp/x; echo y > data/y; mkdir old/z", workdir="/app", overlays=(again,))
    assert list(victim.iterdir()) == []
    assert "->" in text
    assert outcome.setup_error is None


def test_nothing_may_be_mounted_below_a_layer(host: Host, overlay: Callable, tmp_path: Path) -> None:
    spec = SandboxSpec(("true",), "/app", overlays=(overlay("/app"),), binds=(Bind(tmp_path, "/app/below"),))
    with pytest.raises(CannotIsolate, match="nothing may be mounted below a layer"):
        Sandbox.start(host, spec)


@pytest.mark.parametrize("dest", ["/", "/usr/x", "/etc", "/proc", "/tmp", "relative", "/a/../b"])
def test_places_that_no_overlay_may_take(host: Host, overlay: Callable, dest: str) -> None:
    with pytest.raises(CannotIsolate):
        Sandbox.start(host, SandboxSpec(("true",), "/tmp", overlays=(overlay(dest),)))


def test_closed_checkout_and_state(tmp_path: Path) -> None:
    """Everything below a directory that nobody else may enter: as root, the sandbox's uid gets its own view."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    source = closed / "agent"
    source.mkdir()
    (source / "file").write_text("content\n")
    with Host.detect(closed / "state") as host:
        upper, work = host.make_upper(closed / "state" / "t", "1")
        read, write = os.pipe()
        spec = SandboxSpec(
            command=(sys.executable, "-c", "print(open('/root/sia/file').read(), end='')"),
            workdir="/root/data",
            binds=(Bind(source, "/root/sia"),),
            overlays=(),
            directories=("/root/data",),
            python=Path(sys.executable),
        )
        with open(read, "rb") as output, Sandbox.start(host, spec, stdout=write, stderr=write):
            os.close(write)
            assert output.read() == b"content\n"
        assert upper.stat().st_uid == host.uid
        assert work.is_dir()
