"""The watchdogs: bounds that no kernel interface enforces for a whole tree.

Two threads serve all sandboxes of this process: one for time, memory and processes (quick looks), one for disks (a
look takes as long as the tree is large). They end when there has been nothing to watch for a while.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox import nameless, usage
from sandbox.memory import Watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.process import Sandbox

QUICK = 0.1  # seconds between looks at memory and processes
SLOW = 0.25  # … at disks, at least; a look may take at most a tenth of the time
IDLE = 2.0  # seconds without sandboxes after which a thread ends
LAST_LOOK = 5.0  # seconds that the last look at a disk may take
SAMPLE = 1.0  # seconds between looks at what is only shown
MEGABYTE = 1 << 20


class Ward:
    """What the watchdogs know of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.at_bound = 0  # looks in a row with as many processes as allowed
        self.memory_files = 0  # bytes, from the slow look
        self.looks = 0
        self.next_scan = 0.0
        self.next_sample = 0.0
        self.ramdisks = sandbox.host.ramdisks.of(sandbox.spec)
        uppers = [overlay.upper for overlay in sandbox.spec.overlays]
        self.uppers = [upper for upper in uppers if not sandbox.host.ramdisks.find(upper)]  # on disk
        self.watched = isinstance(sandbox.group, Watched)
        self.shared_before = self.shared() if self.watched else 0
        self.free_before = usage.free(self.uppers[0]) if self.uppers else (0, 0)

    def full(self) -> str | None:
        """Which bound of a ramdisk has been reached: whatever asks for more gets ENOSPC."""
        return next((full for disk in self.ramdisks if (full := disk.use().full)), None)

    def in_ramdisks(self) -> int:
        """Bytes of memory that the ramdisks take."""
        return sum(disk.use().bytes for disk in self.ramdisks)

    def shared(self) -> int:
        """Bytes of shared memory of the machine that are in no ramdisk of ours."""
        return usage.shared_memory() - self.sandbox.host.ramdisks.bytes()


@dataclass
class Use:
    """What a sandbox used when the watchdogs looked last, about once a second; None = not known."""

    cpu: float | None = None  # seconds of processor time, all its processes so far
    memory_mb: float | None = None
    disk_mb: float | None = None  # blocks of its upper layers

    def look(self, cpu: float, memory_mb: float | None) -> None:
        """A new look. What ended without being waited for is missing in a later sum, so the larger one stays."""
        self.cpu, self.memory_mb = max(cpu, self.cpu or 0.0), memory_mb


class Rounds(threading.Thread):
    """A thread that calls `look` for every sandbox, every `pause` seconds."""

    def __init__(self, name: str, pause: float, look: Callable[[Ward], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.pause, self.look = pause, look
        self.wards: dict[Sandbox, Ward] = {}
        self.changed = threading.Condition()
        self.ended = False

    def run(self) -> None:
        """Until there was nothing to do for IDLE seconds. No launch wakes it up: that would cost time there."""
        idle = 0.0
        while True:
            with self.changed:
                self.changed.wait(self._rest())
                wards = list(self.wards.values())
                idle = 0.0 if wards else idle + self.pause
                if idle > IDLE:
                    self.ended = True
                    return
            for ward in wards:
                if ward.sandbox.ended:
                    with self.changed:
                        self.wards.pop(ward.sandbox, None)
                else:
                    with contextlib.suppress(OSError):  # what it looked at has just gone
                        self.look(ward)

    def _rest(self) -> float:
        """Seconds to the next look: a deadline may come first."""
        now = time.monotonic()
        deadlines = [d - now for w in self.wards.values() if (d := w.sandbox.deadline) is not None]
        return max(0.001, min([self.pause, *deadlines]))


_lock = threading.Lock()
_threads: dict[str, Rounds] = {}


def add(sandbox: Sandbox) -> None:
    """Watch a sandbox until it ends."""
    limits = sandbox.spec.limits
    ward = Ward(sandbox)
    _enter("sandbox-watch", QUICK, look_quickly, ward)
    disks = ward.uppers and (limits.disk_mb is not None or limits.inodes is not None)
    if disks or isinstance(sandbox.group, Watched):  # memory files are looked for on that round too
        _enter("sandbox-disks", SLOW, look_at_disks, ward)


def _enter(name: str, pause: float, look: Callable[[Ward], None], ward: Ward) -> None:
    with _lock:
        thread = _threads.get(name)
        if thread is not None:
            with thread.changed:
                if not thread.ended:
                    deadline = ward.sandbox.deadline
                    urgent = deadline is not None and deadline - time.monotonic() < pause
                    if urgent:
                        thread.changed.notify()
                    thread.wards[ward.sandbox] = ward
                    return
        thread = _threads[name] = Rounds(name, pause, look)
        thread.wards[ward.sandbox] = ward
        thread.start()


def look_quickly(ward: Ward) -> None:
    """Time, memory, processes."""
    sandbox, limits = ward.sandbox, ward.sandbox.spec.limits
    if sandbox.deadline is not None and time.monotonic() >= sandbox.deadline:
        sandbox.stop_for("seconds")
        return
    if sandbox.group is not None and sandbox.group.exceeded():
        sandbox.stop_for("memory")
        return
    if full := ward.full():
        sandbox.stop_for(full)
        return
    watched = sandbox.group if isinstance(sandbox.group, Watched) else None
    now = time.monotonic()
    sampling = now >= ward.next_sample
    if limits.processes is None and watched is None and not sampling:
        return
    pids = usage.tree(sandbox.pid)
    if sampling:
        ward.next_sample = now + SAMPLE
        sandbox.hold()
        if ward.ramdisks:
            sandbox.use.disk_mb = ward.in_ramdisks() / MEGABYTE
        sandbox.use.look(usage.cpu_seconds(pids), sandbox.group.current() if sandbox.group else None)
    if limits.processes is not None:
        ward.at_bound = _at_bound(ward.at_bound, usage.tasks(pids), limits.processes)
        if ward.at_bound >= 2:  # it stays there: whatever forks, can't any more
            sandbox.stop_for("processes")
            return
    if watched is not None and limits.memory_mb is not None:
        _look_at_memory(ward, watched, pids, limits.memory_mb * MEGABYTE)


def _at_bound(before: int, tasks: int, bound: int) -> int:
    """Looks with as many tasks as allowed. What falls back a little and comes again is a bomb whose forks die."""
    if tasks > bound:
        return before + 1
    return before if tasks > bound * 3 // 4 else 0


def _look_at_memory(ward: Ward, watched: Watched, pids: list[int], bound: int) -> None:
    ward.looks += 1
    memory_files = ward.memory_files + ward.in_ramdisks()
    rough = usage.resident(pids) + memory_files
    watched.latest = min(rough / MEGABYTE, watched.latest or rough / MEGABYTE)  # it counts shared pages again and again
    if rough <= bound // 2 and ward.looks % 10 != 1:
        return  # the exact sum costs milliseconds, and can only be less
    exact = usage.proportional(pids, memory_files)
    watched.latest = exact / MEGABYTE
    watched.highest = max(watched.highest or 0.0, watched.latest)
    if exact > bound:
        ward.sandbox.stop_for("memory")


def look_at_disks(ward: Ward) -> None:
    """Blocks and inodes of all uppers, and files that live without a name."""
    started = time.monotonic()
    if started < ward.next_scan:
        return
    sandbox, limits = ward.sandbox, ward.sandbox.spec.limits
    found = nameless.look(usage.tree(sandbox.pid)[1:])  # pid 1 is ours
    ward.memory_files = found.memory
    if found.memory_hidden and ward.watched and limits.memory_mb is not None:
        bound = limits.memory_mb * MEGABYTE
        if ward.shared() - ward.shared_before > bound:  # of the whole machine: nobody can tell whose it is
            sandbox.stop_for("memory")
    if ward.uppers:
        use = _disk(ward, 60.0)
        sandbox.use.disk_mb = (use.bytes + found.disk) / MEGABYTE
        passed = _passed(ward, use, found)
        if passed:
            sandbox.stop_for(passed)
    ward.next_scan = time.monotonic() + 9 * (time.monotonic() - started)


def _passed(ward: Ward, use: usage.DiskUse, found: nameless.Nameless) -> str | None:
    """Which bound. Where files are hidden, by a directory or in other ways: judged by what the disk has lost."""
    limits = ward.sandbox.spec.limits
    hidden = use.hidden or found.disk_hidden
    if limits.disk_mb is not None:
        bound = limits.disk_mb * MEGABYTE
        if use.bytes + found.disk > bound:
            return "disk"
        if hidden and ward.free_before[0] - usage.free(ward.uppers[0])[0] > bound:
            return "disk"
    if limits.inodes is not None:
        lost = ward.free_before[1] - usage.free(ward.uppers[0])[1] if hidden else 0
        if max(use.inodes + found.disk_files, lost) > limits.inodes:
            return "inodes"
    return None


def _disk(ward: Ward, seconds: float) -> usage.DiskUse:
    """What all uppers on disk take, with what lies in directories that are closed to a user."""
    use = usage.disk(ward.uppers, seconds)
    more = usage.disk_in_closed(ward.uppers, seconds) if use.hidden and not ward.sandbox.host.root else None
    return more or use


def last_look(sandbox: Sandbox) -> str | None:
    """What a sandbox that has just ended passed without being seen: the limit's name."""
    if sandbox.group is not None and sandbox.group.exceeded():
        return "memory"
    limits, ward = sandbox.spec.limits, Ward(sandbox)
    with contextlib.suppress(OSError):
        if full := ward.full():
            return full
    if not ward.uppers or (limits.disk_mb is None and limits.inodes is None):
        return None
    return _passed(ward, _disk(ward, LAST_LOOK), nameless.Nameless())
