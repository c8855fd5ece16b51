"""Files without a name that processes keep alive: by a descriptor, by a mapping alone, by a message on its way.

No directory lists them. What a descriptor holds can be measured; what only a mapping holds, only by root; what lies in
a socket, by nobody. Of those it is said that they are there: then the file system's own count has to do.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox import usage

SIZED = ("/tmp/", "/dev/shm/", "/run/", "/home/agent/")  # tmpfs of a bounded size
IN_MEMORY = ("/memfd:", "/dev/zero", "/SYSV")  # memory files, shared mappings, segments of System V
DELETED = " (deleted)"
MAPS_BYTES = 1 << 20  # of one process's list of mappings: some ten thousand lines
SECONDS = 1.0  # for one look


@dataclass
class Nameless:
    """What was found. `disk`, `memory`: bytes; `disk_hidden`, `memory_hidden`: there may be more that can't be seen."""

    disk: int = 0
    disk_files: int = 0
    memory: int = 0
    disk_hidden: bool = False
    memory_hidden: bool = False

    def hide(self) -> None:
        """Something can't be seen, wherever it lies."""
        self.disk_hidden = self.memory_hidden = True


def look(pids: Sequence[int]) -> Nameless:
    """Of all these processes, each file once."""
    seen = _Look(time.monotonic() + SECONDS)
    faces = [face for pid in pids if (face := seen.descriptors_of(pid))]
    for face in faces:  # when all descriptors are known
        if not seen.found.disk_hidden or not seen.found.memory_hidden:
            seen.mappings_of(face)
    return seen.found


class _Look:
    def __init__(self, deadline: float) -> None:
        self.found = Nameless()
        self._deadline = deadline
        self._files: set[tuple[int, int]] = set()  # device and inode of what was counted
        self._open: set[tuple[str, int]] = set()  # path and inode of what has a descriptor
        self._mapped: set[tuple[str, int]] = set()  # the same of what has none
        self._sockets: set[str] = set()

    def descriptors_of(self, pid: int) -> int | None:
        """Take what a process has open. Returns under which number the rest of it can be seen; None = not at all."""
        try:
            names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208
            if not names and (other := usage.face(pid)) != pid:
                pid, names = other, os.listdir(f"/proc/{other}/fd")  # noqa: PTH208
        except PermissionError:  # it has forbidden it, or runs a program that can't be read
            self.found.hide()
            return None
        except OSError:
            return None
        for name in names:
            with contextlib.suppress(OSError):
                self._descriptor(pid, name)
        if time.monotonic() > self._deadline:
            self.found.hide()
        return pid

    def _descriptor(self, pid: int, name: str) -> None:
        path = f"/proc/{pid}/fd/{name}"
        target = os.readlink(path)  # noqa: PTH115
        if target.startswith("socket:"):
            if target not in self._sockets:
                self._sockets.add(target)
                if not self.found.memory_hidden and _has_descriptors(f"/proc/{pid}/fdinfo/{name}"):
                    self.found.hide()
        elif target.endswith(DELETED):
            status = os.stat(path)  # noqa: PTH116
            self._open.add((target, status.st_ino))
            self._count(target, status)

    def mappings_of(self, pid: int) -> None:
        """Take the files that a process has mapped and nobody has open."""
        text = _beginning(f"/proc/{pid}/maps")
        if len(text) >= MAPS_BYTES or time.monotonic() > self._deadline:
            self.found.hide()
            return
        if b" (deleted)\n" not in text:
            return
        for line in text.splitlines():
            if not line.endswith(b" (deleted)"):
                continue
            place, _, _, _, inode, path = line.split(None, 5)
            key = os.fsdecode(path), int(inode)
            if key in self._open or key in self._mapped or key[0].startswith(SIZED):
                continue
            self._mapped.add(key)
            first, last = (int(address, 16) for address in place.split(b"-"))
            try:
                self._count(key[0], os.stat(f"/proc/{pid}/map_files/{first:x}-{last:x}"))  # noqa: PTH116
            except OSError:  # not root
                if key[0].startswith(IN_MEMORY):
                    self.found.memory_hidden = True
                else:
                    self.found.disk_hidden = True

    def _count(self, path: str, status: os.stat_result) -> None:
        key = status.st_dev, status.st_ino
        if not stat.S_ISREG(status.st_mode) or key in self._files:
            return
        self._files.add(key)
        if path.startswith(IN_MEMORY):
            self.found.memory += status.st_blocks * 512
        elif not path.startswith(SIZED):
            self.found.disk += status.st_blocks * 512
            self.found.disk_files += 1


def _has_descriptors(path: str) -> bool:
    """Whether messages with descriptors wait in a socket (Linux before 5.11 does not tell)."""
    return any(line.startswith(b"scm_fds:") and line.split()[1] != b"0" for line in _beginning(path).splitlines())


def _beginning(path: str) -> bytes:
    """At most MAPS_BYTES; nothing if it is gone."""
    parts, size = [], 0
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while size < MAPS_BYTES and (part := os.read(descriptor, 1 << 16)):
            parts.append(part)
            size += len(part)
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return b"".join(parts)
