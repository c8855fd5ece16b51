"""What a running tree of processes, and a directory, use up. Reads only, and bears everything vanishing meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MEGABYTE = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")  # per second
LONG = 3000  # characters of a path from which on a descriptor takes its place
MAX_ANCHORS = 100  # such descriptors in one scan
CLONE_NEWUSER = 0x10000000


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


def stat_fields(pid: int | str) -> list[str]:
    """/proc/PID/stat from the state on (the name before it can hold anything); [] if it is gone."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return os.read(descriptor, 4096).rpartition(b")")[2].decode("ascii", "replace").split()
    except OSError:
        return []
    finally:
        os.close(descriptor)


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time of these processes, and of their children that have ended and were waited for."""
    found = (stat_fields(pid) for pid in pids)
    return sum(sum(map(int, fields[11:15])) for fields in found if len(fields) > 15) / TICKS


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
    with contextlib.ExitStack() as anchors:
        left = MAX_ANCHORS
        while pending:
            if time.monotonic() > deadline:
                return DiskUse(size, inodes, hidden, complete=False)
            directory = pending.pop()
            try:
                if len(directory) > LONG and left:
                    left -= 1
                    directory = _anchored(directory, anchors)
                with os.scandir(directory) as scan:
                    entries = list(scan)
            except OSError as error:
                hidden = hidden or error.errno in (errno.EACCES, errno.ENAMETOOLONG)
                continue
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError as error:  # gone by now, or too deep for us
                    hidden = hidden or error.errno == errno.ENAMETOOLONG
                    continue
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


def _anchored(directory: str, anchors: contextlib.ExitStack) -> str:
    """A short path to a directory that lies deep: the kernel takes 4096 bytes, an instance can nest far more."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    anchors.callback(os.close, descriptor)
    return f"/proc/self/fd/{descriptor}"


def disk_in_closed(tops: Sequence[Path], seconds: float) -> DiskUse | None:
    """Like `disk` for a user, and through directories of ours that are closed to ourselves (mode 000).

    In a user namespace of its own a child has the right to pass them, and nothing is changed. None where the machine
    does not allow that.
    """
    argv = [sys.executable, "-I", "-S", __file__, str(seconds), *map(os.fspath, tops)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds + 5, check=True)
        return DiskUse(*json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


def _enter_namespace() -> None:
    uid, gid = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "no user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def free(path: Path) -> tuple[int, int]:
    """Bytes and inodes left on the file system of `path`; 0 if it is gone."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_ffree


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    _enter_namespace()
    print(json.dumps(dataclasses.astuple(disk([Path(top) for top in sys.argv[2:]], float(sys.argv[1])))))
