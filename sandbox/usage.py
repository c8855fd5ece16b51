"""What a running tree of processes, and a directory, use up. Reads only, and bears everything vanishing meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MEGABYTE = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class DiskUse:
    """Of the files below some directories."""

    bytes: int  # in blocks, so that sparse files count as what they take
    inodes: int
    hidden: bool  # a directory could not be read
    complete: bool = True  # False: the time ran out


def tree(pid: int) -> list[int]:
    """`pid` and all its descendants. In a pid namespace that is everybody: orphans become children of its pid 1."""
    found, pending = [pid], [pid]
    while pending:
        current = pending.pop()
        try:
            threads = os.listdir(f"/proc/{current}/task")  # noqa: PTH208
        except OSError:
            continue
        for thread in threads:
            children = [int(word) for word in _read(f"/proc/{current}/task/{thread}/children").split()]
            found += children
            pending += children
    return found


def tasks(pids: Sequence[int]) -> int:
    """Threads of all these processes, which is what RLIMIT_NPROC counts."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    return total


def resident(pids: Sequence[int]) -> int:
    """Sum of resident sizes in bytes: cheap, and never less than the proportional sum below."""
    return sum(int(fields[1]) for pid in pids if len(fields := _read(f"/proc/{pid}/statm").split()) > 1) * PAGE


def proportional(pids: Sequence[int], memory_files: int = 0) -> int:
    """Bytes that the tree really takes: shared pages count once (PSS). `memory_files` are memfds, mapped or not."""
    private = shared = 0
    for pid in pids:
        text = _read(f"/proc/{pid}/smaps_rollup")
        values = {name: int(kilobytes) << 10 for name, kilobytes in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
        if "Pss" not in values:  # can't be read: count it in full
            private += resident([pid])
            continue
        shared += values.get("Pss_Shmem", 0)
        private += values["Pss"] - values.get("Pss_Shmem", 0)
    return private + max(shared, memory_files)


def deleted_files(pids: Sequence[int]) -> tuple[int, int]:
    """Bytes of open files that have no name any more: (on disks, in memory as memfd)."""
    disk = memory = 0
    seen: set[tuple[int, int]] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                path = f"/proc/{pid}/fd/{name}"
                with contextlib.suppress(OSError):
                    target = os.readlink(path)  # noqa: PTH115
                    if not target.endswith(" (deleted)"):
                        continue
                    found = os.stat(path)  # noqa: PTH116
                    if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) in seen:
                        continue
                    seen.add((found.st_dev, found.st_ino))
                    if target.startswith("/memfd:"):
                        memory += found.st_blocks * 512
                    elif not target.startswith(("/tmp/", "/dev/shm/", "/run/", "/home/agent/")):  # sized tmpfs
                        disk += found.st_blocks * 512
    return disk, memory


def disk(tops: Sequence[Path], seconds: float = 60.0) -> DiskUse:
    """Blocks and inodes below `tops`, hard links counted once; gives up after `seconds`."""
    size = inodes = 0
    hidden = False
    links: set[tuple[int, int]] = set()
    pending = [os.fspath(top) for top in tops]
    deadline = time.monotonic() + seconds
    while pending:
        if time.monotonic() > deadline:
            return DiskUse(size, inodes, hidden, complete=False)
        directory = pending.pop()
        try:
            entries = list(os.scandir(directory))
        except OSError as error:
            hidden = hidden or error.errno in (errno.EACCES, errno.ENAMETOOLONG)
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    pending.append(entry.path)
                elif found.st_nlink > 1:
                    key = found.st_dev, found.st_ino
                    if key in links:
                        continue
                    links.add(key)
                size += found.st_blocks * 512
                inodes += 1
    return DiskUse(size, inodes, hidden)


def free(path: Path) -> int:
    """Bytes left on the file system of `path`; 0 if it is gone."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
