"""Scratch directories that a killed process can't leave for good: each is locked while it is in use."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import Failed

FULL = "free some space, or set SIA_HOME to another disk"


def fix_of(said: str, otherwise: str) -> str:
    """What to do about the failure of a program that said this: a full disk explains most of them."""
    return FULL if re.search(r"No space left|Disk quota|[Cc]ouldn't write|unable to write", said) else otherwise


@contextmanager
def directory(parent: Path, prefix: str) -> Iterator[Path]:
    """A new directory below `parent`, gone at the end unless the block renamed it; removes those of dead processes."""
    with writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent, prefix)
        path, descriptor = _make(parent, prefix)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Makes a full, read-only or broken disk met in the block a Failed that names the place."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = FULL if full else "make the directory writable for SIA"
        where = error.filename if isinstance(error.filename, str) else str(place)
        raise Failed(f"can't be written: {error.strerror or error}", where=where, fix=fix) from None


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        descriptor = _lock(path)
        if descriptor is not None:
            path.chmod(0o755)
            return path, descriptor
        # a sweeper saw the name before our lock, took it for an orphan and removes it: take another


def _sweep(parent: Path, prefix: str) -> None:
    for path in parent.glob(f"{prefix}*"):
        descriptor = _lock(path)
        if descriptor is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)


def _lock(path: Path) -> int | None:
    """A locked descriptor of the directory, or None if it is gone or in use."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
