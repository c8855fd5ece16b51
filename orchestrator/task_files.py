"""A task's files, copied once for many sandboxes, and the content hash that names the task in evidence."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator import neutral
from orchestrator.errors import ConfigError
from orchestrator.tasks import Task
from sandbox.errors import SandboxFailed, UnsafePath
from sandbox.host import Host
from sandbox.layers import materialise
from sandbox.read import open_beneath

IMAGE_BYTES = 4 << 30  # of a task's places that are copied out of its rootfs
KEY_LENGTH = 16  # hex digits of the content hash in directory names


@dataclass(frozen=True)
class TaskFiles:
    """A task's files copied for sandboxes: readable by the sandbox uid, never written again."""

    task: Task
    roots: Mapping[str, Path]  # `task.places` → directory with the starting files there
    tests: Path
    solution: Path | None
    key: str  # content hash of the whole task directory


def prepare(task: Task, host: Host, directory: Path) -> TaskFiles:
    """Copy the task's files below `directory`; a finished copy of the same content is used again.

    Safe against other threads and processes that do the same, and against being killed: the copy appears by a rename.
    Raises ConfigError for special files and unreadable ones.
    """
    key = content_key(task.path)
    label = directory / f"{task.name}-{key[:KEY_LENGTH]}"  # for people; what is mounted must not tell
    copy = label.resolve() if label.is_dir() else directory / _neutral(task.name, key)
    if not copy.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{task.name}.", dir=directory))
        try:
            _fill(task, fresh)
            host.own(fresh)
            with contextlib.suppress(OSError):  # another one was faster: its copy is as good
                fresh.rename(copy)
        finally:
            if fresh.exists():
                host.remove(fresh)
    neutral.link(label, copy)
    solution = copy / "solution"
    roots = {place: copy / "files" / str(number) for number, place in enumerate(task.places)}
    return TaskFiles(task, roots, copy / "tests", solution if solution.is_dir() else None, key)


def _neutral(name: str, key: str) -> str:
    return hashlib.sha256(f"{name}\0{key}".encode()).hexdigest()[:KEY_LENGTH]


def content_key(directory: Path) -> str:
    """SHA-256 over every name, kind, execute bit and content of a directory."""
    digest = hashlib.sha256()
    for path, status in _walk(directory):
        name = os.fsencode(path.relative_to(directory))
        if stat.S_ISLNK(status.st_mode):
            kind, content = b"l", os.fsencode(path.readlink())
        elif stat.S_ISDIR(status.st_mode):
            kind, content = b"d", b""
        elif stat.S_ISREG(status.st_mode):
            kind, content = b"x" if status.st_mode & 0o100 else b"f", _digest(path)
        else:
            raise ConfigError("neither file, directory nor link", where=str(path), fix="remove it from the task")
        digest.update(b"%b %d %b %d " % (kind, len(name), name, len(content)) + content)
    return digest.hexdigest()


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise ConfigError(f"can't be read: {error.strerror}", where=str(path), fix="make it readable") from None


def _walk(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for entry in sorted(os.scandir(directory), key=lambda entry: os.fsencode(entry.name)):
        status = entry.stat(follow_symlinks=False)
        yield Path(entry.path), status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(Path(entry.path))


def _fill(task: Task, fresh: Path) -> None:
    fresh.chmod(0o755)
    (fresh / "files").mkdir()
    for number, place in enumerate(task.places):
        if not _from_image(task, place, fresh / "files" / str(number)):
            (fresh / "files" / str(number)).mkdir()
        if number == 0:
            (fresh / "files/0" / os.path.relpath(task.workdir, place)).mkdir(parents=True, exist_ok=True)
    for copy in task.copies:
        number, place = next(
            (n, p) for n, p in enumerate(task.places) if copy.dest == p or copy.dest.startswith(f"{p}/")
        )
        target = fresh / "files" / str(number) / os.path.relpath(copy.dest, place)
        _copy(copy.source, target, skip=task.path / "environment/Dockerfile")
    for name in ("tests", "solution"):
        if (task.path / name).is_dir():
            _copy(task.path / name, fresh / name, skip=None)


def _from_image(task: Task, place: str, target: Path) -> bool:
    """Copy what the task's rootfs has at `place`, where the instance will write. False if it has nothing there."""
    if task.rootfs is None:
        return False
    fix = "keep in the rootfs, at the workdir and where files are copied to, only what the task needs there"
    try:
        os.close(open_beneath(task.rootfs, place.lstrip("/"), os.O_PATH | os.O_DIRECTORY))
        materialise((task.rootfs / place.lstrip("/"),), None, target, IMAGE_BYTES)
    except FileNotFoundError:
        return False
    except (SandboxFailed, UnsafePath) as error:
        raise ConfigError(f"{place} of the rootfs: {error.what}", where=str(task.rootfs), fix=fix) from None
    target.chmod(0o755)
    return True


def _copy(source: Path, target: Path, skip: Path | None) -> None:
    """Copy a file, or the content of a directory into `target` (which may exist). Links stay links, setuid goes."""
    if source == skip:
        return
    status = source.lstat()
    if stat.S_ISDIR(status.st_mode):
        target.mkdir(parents=True, exist_ok=True)
        for entry in sorted(source.iterdir()):
            _copy(entry, target / entry.name, skip)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.is_file():
        target.unlink()
    if stat.S_ISLNK(status.st_mode):
        target.symlink_to(source.readlink())
        return
    shutil.copyfile(source, target)
    target.chmod(0o755 if status.st_mode & 0o100 else 0o644)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
