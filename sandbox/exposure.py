"""As root: making host paths reachable for the sandbox uid, in the spawner's private mount namespace."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from sandbox.errors import SandboxFailed

Identity = tuple[int, int]


def reachable(path: Path, uid: int, base: Path = Path("/")) -> bool:
    """Whether `uid` (in its own group only) may pass every directory from `base` down to `path`, and enter `path`."""
    here, top, last = str(path), str(base), True
    while _passable(here, uid, last=last):
        if here in (top, "/"):
            return True
        here, last = os.path.dirname(here), False  # noqa: PTH120
    return False


def _passable(path: str, uid: int, *, last: bool) -> bool:
    found = os.stat(path)  # noqa: PTH116
    if last and not stat.S_ISDIR(found.st_mode):
        return True
    shift = 6 if found.st_uid == uid else 3 if found.st_gid == uid else 0
    return bool(found.st_mode >> shift & stat.S_IXOTH)


class Exposure:
    """Maps host paths to paths that the sandbox uid can use.

    `neutral` is a tmpfs of the spawner. `request` sends it a message and returns what went wrong, or None.
    What lies below `state` goes through one mount, and everything else that can't be reached gets one of its own,
    at its first use. Mounts are made anew when another file has taken the path's place.
    """

    def __init__(
        self, state: Path, uid: int, neutral: Path, request: Callable[[dict[str, object]], str | None]
    ) -> None:
        self.state, self.uid, self.neutral, self._request = state, uid, neutral, request
        self._lock = threading.Lock()
        self._mounts: dict[Path, tuple[Identity, Path]] = {}
        self._lent: set[Path] = set()
        self._count = 0
        self._state_place = self._expose(state)

    def lend(self, path: Path) -> None:
        """From now on, `place(path)` is a view in which the sandbox uid owns what the directory's owner owns.

        Raises SandboxFailed where the kernel or the file system has no id-mapped mounts.
        """
        real = path.resolve()
        self._lent.add(real)
        try:
            self._expose(real)
        except SandboxFailed:
            self._lent.discard(real)
            raise

    def place(self, path: Path) -> Path:
        """Where the spawner's children find `path`. Raises SandboxFailed if it does not exist."""
        try:
            real = Path(os.path.realpath(path, strict=True))
            if real in self._lent:
                return self._expose(real)
            inside = str(real).removeprefix(f"{self.state}/")
            if inside != str(real) and reachable(real, self.uid, self.state):
                return self._state_place / inside
            if reachable(real, self.uid):
                return real
            return self._expose(real)
        except OSError as error:
            raise SandboxFailed(f"can't be shown in a sandbox ({error.strerror})", where=str(path)) from None

    def forget(self, path: Path) -> None:
        """Undo the mounts of paths at or below `path`, which is about to be removed."""
        with self._lock:
            for known in [known for known in self._mounts if known.is_relative_to(path)]:
                self._request({"unbind": str(self._mounts.pop(known)[1])})

    def _expose(self, real: Path) -> Path:
        found = real.stat()
        identity = found.st_dev, found.st_ino
        with self._lock:
            known = self._mounts.get(real)
            if known and known[0] == identity:
                return known[1]
            if known:
                self._request({"unbind": str(known[1])})
            dest = self.neutral / str(self._count)
            self._count += 1
            message = {"bind": str(real), "at": str(dest), "directory": stat.S_ISDIR(found.st_mode)}
            owner = [found.st_uid, found.st_gid] if real in self._lent else None
            error = self._request({**message, "owner": owner})
            if error:
                raise SandboxFailed(f"can't be shown in a sandbox ({error})", where=str(real))
            self._mounts[real] = identity, dest
            return dest
