"""From what bwrap said when a launch failed to what is wrong with the machine, and what to do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Advice:
    """One cause and its fix."""

    cause: str
    fix: str


PROFILE = """abi <abi/4.0>,
include <tunables/global>
profile sia-bwrap {path} flags=(unconfined) {{
  userns,
}}"""


def advise(text: str, bwrap: Path, proc: Path = Path("/proc")) -> Advice:
    """The cause behind the message `text` of a failed launch."""
    sysctl = proc / "sys"
    for words, cause, fix in _table(bwrap):
        if all(word in text for word in words):
            return Advice(cause, fix)
    if "Creating new namespace failed" in text or "No permissions to creat" in text:
        if _value(sysctl / "kernel/unprivileged_userns_clone") == "0":
            return Advice("the sysctl forbids user namespaces", "sudo sysctl kernel.unprivileged_userns_clone=1")
        if _in_container():
            fix = (
                "start the container with --security-opt seccomp=unconfined (or a profile that allows user namespaces)"
            )
            return Advice("the container's seccomp profile forbids user namespaces", fix)
        return Advice(
            "user namespaces are forbidden here", "ask the administrator to allow unprivileged user namespaces"
        )
    return Advice(
        "bubblewrap could not set the sandbox up", "see the message; `sia doctor` shows what this machine can do"
    )


def _table(bwrap: Path) -> tuple[tuple[tuple[str, ...], str, str], ...]:
    apparmor = (
        f"write this to /etc/apparmor.d/sia-bwrap (it must name this very path), then run "
        f"`sudo apparmor_parser -r /etc/apparmor.d/sia-bwrap`:\n{PROFILE.format(path=bwrap)}"
    )
    full = "free some space, or set SIA_HOME to a directory on another disk"
    return (
        (
            ("Creating new namespace failed", "No space left"),
            "there may be no more user namespaces (user.max_user_namespaces)",
            "sudo sysctl user.max_user_namespaces=65536",
        ),
        (
            ("max_*_namespaces exceeded",),
            "there may be no more user namespaces (user.max_user_namespaces), or they are nested too deeply",
            "sudo sysctl user.max_user_namespaces=65536",
        ),
        (("RTM_NEWADDR", "not permitted"), "AppArmor forbids what user namespaces need (Ubuntu's default)", apparmor),
        (("setting up uid map",), "AppArmor forbids user namespaces to be used (Ubuntu's default)", apparmor),
        (
            ("Can't mount proc",),
            "/proc is masked, as in a container, so no new one may be mounted",
            "start the container with --security-opt systempaths=unconfined",
        ),
        (("overlay mount", "may not overlap"), "the upper lies inside one of its own lowers", "set SIA_HOME elsewhere"),
        (
            ("overlay mount", "Invalid argument"),
            "the kernel refuses this overlay: the upper lies on an overlay or NFS, or there are too many layers",
            "set SIA_HOME to a directory on a local disk (ext4, xfs, btrfs), or on a tmpfs",
        ),
        (("overlay mount", "File name too long"), "the overlay's options are too long", "use a shorter SIA_HOME"),
        (
            ("overlay mount", "Permission denied"),
            "a layer can't be reached by the sandbox's user",
            "check its directories",
        ),
        (
            ("Value too large",),
            "a file's owner has no number inside the sandbox",
            "let the sandbox's user own the files",
        ),
        (("No space left on device",), "no space left", full),
        (("mknod", "not permitted"), "devices can't be made here", "run on the host, or in a less confined container"),
    )


def _value(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _in_container() -> bool:
    return any(Path(name).exists() for name in ("/.dockerenv", "/run/.containerenv")) or "container" in os.environ
