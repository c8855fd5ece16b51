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

from sandbox.read import openat2

MEGABYTE = 1 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")  # per second
LONG = 3000  # characters of a path from which on a descriptor takes its place
MAX_ANCHORS = 100  # such descriptors in one scan
CLONE_NEWUSER = 0x10000000
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


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


def face(pid: int) -> int:
    """A thread of a process that still has its memory and its descriptors.

    Of one whose first thread has ended while others go on, /proc shows neither under its own number.
    """
    if stat_fields(pid)[:1] == ["Z"]:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                if stat_fields(name)[:1] not in (["Z"], ["X"], []):
                    return int(name)
    return pid


def resident(pids: Sequence[int]) -> int:
    """Sum of resident sizes in bytes: cheap, and never less than the proportional sum below."""
    return sum(_resident_pages(pid) for pid in pids) * PAGE


def _resident_pages(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    if fields[:1] == ["0"] and (other := face(pid)) != pid:
        fields = _read(f"/proc/{other}/statm").split()
    return int(fields[1]) if len(fields) > 1 else 0


def shared_memory() -> int:
    """Bytes in memory files, shared mappings and tmpfs of the whole machine."""
    found = re.search(r"^Shmem:\s+(\d+) kB", _read("/proc/meminfo"), re.M)
    return int(found[1]) << 10 if found else 0


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


def disk(tops: Sequence[Path], seconds: float = 60.0) -> DiskUse:
    """Blocks and inodes below `tops`, hard links counted once; gives up after `seconds`.

    An instance may be writing there: a directory that it has exchanged for a link since it was seen is not followed.
    """
    size = inodes = 0
    hidden = False
    links: set[tuple[int, int]] = set()
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as opened:
        pending: list[tuple[int, str]] = []  # an open directory, and the way from there
        for top in tops:
            try:
                pending.append((os.open(top, DIRECTORY), "."))
            except OSError as error:
                hidden = hidden or error.errno == errno.EACCES
                continue
            opened.callback(os.close, pending[-1][0])
        left = MAX_ANCHORS
        while pending:
            if time.monotonic() > deadline:
                return DiskUse(size, inodes, hidden, complete=False)
            anchor, way = pending.pop()
            try:
                here = openat2(anchor, way, DIRECTORY)
            except OSError as error:
                hidden = hidden or error.errno in (errno.EACCES, errno.ENAMETOOLONG)
                continue
            try:
                found, seen = _entries(here)
                hidden = hidden or not seen
            finally:
                if len(way) > LONG and left:  # the kernel takes 4096 bytes, an instance can nest far more
                    left -= 1
                    opened.callback(os.close, here)
                    anchor, way = here, "."
                else:
                    os.close(here)
            for name, status in found:
                if stat.S_ISDIR(status.st_mode):
                    pending.append((anchor, f"{way}/{name}"))
                elif status.st_nlink > 1:
                    key = status.st_dev, status.st_ino
                    if key in links:
                        continue
                    links.add(key)
                size += status.st_blocks * 512
                inodes += 1
    return DiskUse(size, inodes, hidden)


def _entries(directory: int) -> tuple[list[tuple[str, os.stat_result]], bool]:
    """Names in an open directory and what they are, without those that have gone by now; whether all could be seen."""
    found, seen = [], True
    try:
        with os.scandir(directory) as scan:
            for entry in scan:
                try:
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
                except PermissionError:  # one that may be listed, but not entered
                    seen = False
                except OSError:
                    pass
    except FileNotFoundError:
        pass  # the directory itself
    except OSError:
        seen = False
    return found, seen


def disk_in_closed(tops: Sequence[Path], seconds: float) -> DiskUse | None:
    """Like `disk` for a user, and through directories of ours that are closed to ourselves (mode 000).

    In a user namespace of its own a child has the right to pass them, and nothing is changed. None where the machine
    does not allow that.
    """
    start = "import sys; sys.path[:0] = [sys.argv.pop(1)]; from sandbox import usage; usage.in_closed()"
    room = os.fspath(Path(__file__).parent.parent)
    argv = [sys.executable, "-I", "-S", "-c", start, room, str(seconds), *map(os.fspath, tops)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds + 5, check=True)
        return DiskUse(*json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


def in_closed() -> None:
    """What that child does."""
    _enter_namespace()
    print(json.dumps(dataclasses.astuple(disk([Path(top) for top in sys.argv[2:]], float(sys.argv[1])))))


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
