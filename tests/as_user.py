# ruff: noqa: PTH102, PTH103, PTH109, PTH112, PTH116
"""As root: `as_user.py UID NEEDED… -- CMD…` runs a command as an unprivileged uid that can reach the NEEDED paths.

An interpreter or a checkout below /root can't be reached by anybody else. So, in a mount namespace of its own, each
closed directory on the way is covered by an open tmpfs in which only what is needed is bound. Nothing is copied, and
nothing changes outside. Standard library only (runs with -I -S).
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x00020000, 0x1000, 0x4000, 0x40000
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, dest: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2), or the end."""
    if libc.mount(os.fsencode(source), os.fsencode(dest), kind.encode(), ctypes.c_ulong(flags), data.encode()):
        sys.exit(f"mount {dest}: {os.strerror(ctypes.get_errno())}")


def closed_ancestor(path: str) -> str | None:
    """The topmost directory on the way to `path` that others may not pass."""
    here = ""
    for part in path.split("/")[1:]:
        here += "/" + part
        if os.path.isdir(here) and not os.stat(here).st_mode & 0o001:
            return here
    return None


def main() -> None:
    """Cover, bind, become the user."""
    split = sys.argv.index("--")
    uid, needed, command = int(sys.argv[1]), sys.argv[2:split], sys.argv[split + 1 :]
    if libc.unshare(CLONE_NEWNS):
        sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
    mount("none", "/", "none", MS_REC | MS_PRIVATE)
    groups: dict[str, list[str]] = {}
    for path in needed:
        closed = closed_ancestor(path)
        if closed:
            groups.setdefault(closed, []).append(path)
    cwd = os.getcwd()
    for closed, paths in groups.items():
        mount("tmpfs", "/mnt", "tmpfs", 0, "mode=755")
        for number, path in enumerate(paths):
            os.mkdir(f"/mnt/{number}")
            mount(path, f"/mnt/{number}", "none", MS_BIND | MS_REC)
        mount("tmpfs", closed, "tmpfs", 0, "mode=755")
        for number, path in enumerate(paths):
            os.makedirs(path, exist_ok=True)
            mount(f"/mnt/{number}", path, "none", MS_BIND | MS_REC)
        libc.umount2(b"/mnt", 2)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.chdir(cwd)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
