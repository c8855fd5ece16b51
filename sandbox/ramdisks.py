"""Ramdisks: tmpfs of a given size in which uppers lie, so that the kernel answers ENOSPC where a disk would be watched.

One is mounted where nobody but the spawner and its sandboxes finds it (spawner.py). Everybody else reaches it by a
descriptor of ours: the directory under which callers know it is a link to `/proc/PID/fd/N`. So what an instance left
can be read when its sandbox is gone, by every process of this user, until it is released; and when this process dies,
in whatever way, that link leads nowhere, the spawner follows, and the kernel frees the memory.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.errors import CannotIsolate, SandboxFailed

if TYPE_CHECKING:
    from sandbox.launcher import Launcher
    from sandbox.spec import Limits, SandboxSpec

MEGABYTE = 1 << 20
SPARE = 32  # inodes for directories of ours, and those that the overlay makes for itself


@dataclass(frozen=True)
class Use:
    """What a ramdisk holds."""

    bytes: int  # in blocks; of deleted files that are open, too
    full: str | None  # "disk" or "inodes": there is not one block, or not one inode, left


@dataclass(frozen=True)
class Ramdisk:
    """`path` is ours, `place` is where a sandbox's bwrap finds the same directory."""

    path: Path
    place: Path
    descriptor: int

    def use(self) -> Use:
        """What it holds now. Raises OSError when it has been released."""
        found = os.statvfs(self.path)
        full = "disk" if found.f_bfree == 0 else "inodes" if found.f_ffree == 0 else None
        return Use((found.f_blocks - found.f_bfree) * found.f_frsize, full)


class Ramdisks:
    """All ramdisks of one host. `base` is a directory of ours below which they are mounted. Thread-safe.

    For a user it stays, empty: removing it would undo what another host has mounted there in its own namespace.
    """

    def __init__(self, launcher: Launcher, base: Path) -> None:
        self._launcher, self._base = launcher, base
        self._ramdisks: dict[Path, Ramdisk] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def make(self, path: Path, limits: Limits) -> None:
        """Let `path`, which must not exist, be a ramdisk for `limits.disk_mb` and `limits.inodes`.

        Raises CannotIsolate where this machine has no such thing, with the reason.
        """
        if limits.disk_mb is None or limits.inodes is None:
            raise CannotIsolate("an upper in memory needs a size and a number of files", where=str(path))
        ramdisk = self._mount(path, limits.disk_mb * MEGABYTE, limits.inodes + SPARE)
        try:
            path.symlink_to(f"/proc/{os.getpid()}/fd/{ramdisk.descriptor}")
        except OSError as failure:
            self._give_back(ramdisk)
            raise SandboxFailed(f"can't be created ({failure.strerror})", where=str(path)) from None
        with self._lock:
            self._ramdisks[path] = ramdisk

    def prove(self) -> None:
        """Raise CannotIsolate if there are no ramdisks on this machine."""
        self._give_back(self._mount(Path(), MEGABYTE, SPARE))

    def _mount(self, path: Path, size: int, inodes: int) -> Ramdisk:
        if self._launcher.uid is None:
            self._base.mkdir(mode=0o700, exist_ok=True)
        place = self._base / f"u{next(self._numbers)}"
        request = {"ramdisk": str(place), "base": str(self._base), "bytes": size, "inodes": inodes}
        error, descriptors = self._launcher.ask(request)
        if error or not descriptors:
            cause, fix = _explain(error or "no descriptor came")
            raise CannotIsolate(f"no upper can lie in memory: {cause} ({error})", fix=fix)
        return Ramdisk(path, place, descriptors[0])

    def find(self, path: Path) -> Ramdisk | None:
        """The ramdisk in which `path` lies."""
        if not self._ramdisks:
            return None
        with self._lock:
            return next((ramdisk for known, ramdisk in self._ramdisks.items() if path.is_relative_to(known)), None)

    def place(self, path: Path) -> Path | None:
        """Where the spawner's children find something in a ramdisk; None if it is in none."""
        ramdisk = self.find(path)
        return ramdisk.place / path.relative_to(ramdisk.path) if ramdisk else None

    def of(self, spec: SandboxSpec) -> list[Ramdisk]:
        """Those in which this sandbox writes."""
        found = {ramdisk.path: ramdisk for overlay in spec.overlays if (ramdisk := self.find(overlay.upper))}
        return list(found.values())

    def used_by(self, spec: SandboxSpec) -> bool:
        """Whether this sandbox reads or writes in any."""
        return bool(self._ramdisks) and any(
            self.find(path) for overlay in spec.overlays for path in (overlay.upper, *overlay.lowers)
        )

    def bytes(self) -> int:
        """Memory that all of them take."""
        with self._lock:
            return sum(ramdisk.use().bytes for ramdisk in self._ramdisks.values())

    def release(self, path: Path) -> None:
        """Give back all ramdisks at or below `path`. No sandbox may use them any more."""
        if not self._ramdisks:
            return
        with self._lock:
            ended = [self._ramdisks.pop(known) for known in list(self._ramdisks) if known.is_relative_to(path)]
        self._end(ended)

    def close(self) -> None:
        """Give back all of them."""
        with self._lock:
            ended = list(self._ramdisks.values())
            self._ramdisks.clear()
        self._end(ended)

    def _end(self, ramdisks: list[Ramdisk]) -> None:
        for ramdisk in ramdisks:
            with contextlib.suppress(OSError):
                ramdisk.path.unlink()
            self._give_back(ramdisk)

    def _give_back(self, ramdisk: Ramdisk) -> None:
        self._launcher.request({"leave": str(ramdisk.place)})  # if the spawner is gone, so are its mounts
        os.close(ramdisk.descriptor)


def is_left(path: Path) -> bool:
    """Whether `path` is the link of a ramdisk, of a dead process usually."""
    try:
        return stat.S_ISLNK(path.lstat().st_mode) and str(path.readlink()).startswith("/proc/")
    except OSError:
        return False


def _explain(error: str) -> tuple[str, str]:
    """What is missing, and what to do."""
    disk = 'or keep them on disk (upper = "disk")'
    if "not supported" in error:
        return "a tmpfs of this kernel has no user.* attributes", f"use Linux 6.6 or newer, {disk}"
    if error.startswith("a user namespace"):
        return "this program may not make a user namespace", f"allow it, as `sia doctor` says for bwrap, {disk}"
    return "no tmpfs can be mounted", f"allow mounts in user namespaces (AppArmor may forbid them), {disk}"
