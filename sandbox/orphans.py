"""What supervisors that were killed have left: looked for by `sia status`, cleared when the next one starts.

Their processes die with them, their mounts lie in a namespace that goes with the last of these, their sockets are
swept by the next server. Layers stay. So every host holds a shared lock on its state directory: whoever gets it
exclusively knows that nobody is alive there, and that whatever is temporary is nobody's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox import memory, runner

NEUTRAL = "/run/.sia"  # as in host.py, which this file must not import: it starts fast
LOCK = "hosts.lock"
NEUTRAL_LAYERS = "layers"
TEMPORARY = ("conformance/*/layers-*", "conformance/*", "cache/check-*")  # below a state directory
TRIALS = "campaigns/*/trials/*"
OF_TRIALS = ("layers", "verifier", "oracle/layers", "oracle/verifier")  # below one of these, while it runs


@dataclass(frozen=True)
class Orphan:
    """`kind`: process, mount, group, socket or layers."""

    kind: str
    what: str


class Presence:
    """The shared lock of one host. Making the first one for a directory yields what is to be removed."""

    def __init__(self, state: Path) -> None:
        self._descriptor = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.left: list[Path] = []
        if _try_lock(self._descriptor):
            self.left = list(_layers(state))

    def share(self) -> None:
        """What was left has been removed: let others in."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """This host has ended."""
        os.close(self._descriptor)


@contextlib.contextmanager
def alone(state: Path) -> Iterator[bool]:
    """Whether no host is alive for this directory; if so, one that starts meanwhile waits until the block has ended."""
    descriptor = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _try_lock(descriptor)
    finally:
        os.close(descriptor)


def look(state: Path, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> list[Orphan]:
    """Everything of this user that no living supervisor answers for. Reads only."""
    found = [Orphan("process", f"{pid}: {words}") for pid, words in _processes(proc)]
    with contextlib.suppress(OSError):
        lines = (proc / "self/mountinfo").read_text(errors="replace").splitlines()
        points = [line.split()[4] for line in lines]
        found += [Orphan("mount", point) for point in points if f"{point}/".startswith(f"{NEUTRAL}/")]
    found += [Orphan("group", str(path)) for path in memory.stale(groups, proc)]
    found += [Orphan("socket", str(path)) for path in _sockets(state, proc)]
    if _nobody(state):
        found += [Orphan("layers", str(path)) for path in _layers(state)]
    return found


def _processes(proc: Path) -> Iterator[tuple[int, str]]:
    """Sandboxes without a spawner above them, which the kernel should have ended."""
    for entry in proc.iterdir():
        if entry.name.isdigit():
            words = _words(entry)
            if words[:1] == [runner.PATH] and not _below_spawner(proc, int(entry.name)):
                yield int(entry.name), " ".join(words[6:])[:80]


def _below_spawner(proc: Path, pid: int) -> bool:
    while pid > 1:
        try:
            pid = int((proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return True  # it has just ended
        if any(word.endswith("/spawner.py") for word in _words(proc / str(pid))):
            return True
    return False


def _words(entry: Path) -> list[str]:
    try:
        return (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def _sockets(state: Path, proc: Path) -> Iterator[Path]:
    for path in (state / "run").glob("s-*-*"):
        if not (proc / path.name.split("-")[1]).exists():
            yield path


def _layers(state: Path) -> Iterator[Path]:
    """Where a link stands for a neutral place (orchestrator/neutral.py), that comes first, so that it can still be
    found if we are killed in between."""
    for path in _temporary(state):
        if path.is_symlink():
            target = Path(os.path.normpath(path.parent / path.readlink()))
            if target.parent == state / NEUTRAL_LAYERS and os.path.lexists(target):
                yield target
        yield path


def _temporary(state: Path) -> Iterator[Path]:
    for pattern in TEMPORARY:
        yield from state.glob(pattern)
    for trial in state.glob(TRIALS):  # a ramdisk's link leads nowhere when its process has died
        yield from (path for name in OF_TRIALS if os.path.lexists(path := trial / name))


def _nobody(state: Path) -> bool:
    """Whether no host is alive for this directory."""
    try:
        descriptor = os.open(state / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
