"""Agent paths of a commit as files: written whole or not at all, and checked against git's tree hash."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

from orchestrator import scratch
from orchestrator.agent_paths import TreeFile
from orchestrator.durable import sync_directory
from orchestrator.errors import Failed
from orchestrator.gitio import Objects
from orchestrator.gitobjects import DIRECTORY, EXECUTABLE, FILE, SYMLINK, Entry, encode_tree, object_id

COMPILE_SECONDS = 60.0
COMPILE_MEMORY = 2 << 30
CACHE = "__pycache__"


def tree_hash(path: Path) -> str:
    """Git's tree hash of a directory as it lies on disk, without compiled Python. Never follows a symlink.

    Raises Failed for what git can't hold (devices, FIFOs).
    """
    return _tree_hash(os.fsencode(path))


def _tree_hash(path: bytes) -> str:
    found = []
    with os.scandir(path) as listing:
        for item in listing:
            name = os.fsdecode(item.name)
            mode = item.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                if name != CACHE:
                    found.append(Entry(DIRECTORY, name, _tree_hash(item.path)))
            elif stat.S_ISLNK(mode):
                found.append(Entry(SYMLINK, name, object_id("blob", os.readlink(item.path))))  # noqa: PTH115
            elif stat.S_ISREG(mode):
                content = Path(os.fsdecode(item.path)).read_bytes()
                found.append(Entry(EXECUTABLE if mode & 0o100 else FILE, name, object_id("blob", content)))
            else:
                raise Failed("neither file, directory nor symlink", where=os.fsdecode(item.path), fix="remove it")
    return encode_tree(found).oid


def make(objects: Objects, files: Sequence[TreeFile], tree: str, target: Path, python: Path) -> None:
    """Write `target` from git objects, unless another process makes it first.

    Files are 0444 or 0555, directories 0755. Python sources are compiled beside themselves by `python`, since a
    read-only mount can't cache that later (it is compilation only: nothing of the candidate runs). Raises Failed if
    what lies on disk does not give `tree`.
    """
    with scratch.directory(target.parent, ".making-") as fresh:
        for file in files:
            _write(objects, file, fresh)
        if tree_hash(fresh) != tree:
            raise Failed("the files written do not give the commit's tree hash", where=str(target), fix="try again")
        _compile(fresh, python)
        _sync(fresh)
        try:
            fresh.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            # another process was faster: one commit has one content, and the caller verifies it
        sync_directory(target.parent)


def _write(objects: Objects, file: TreeFile, root: Path) -> None:
    path = root / file.path
    for parent in reversed(path.relative_to(root).parents):
        directory = root / parent
        if not directory.exists():
            directory.mkdir()
            directory.chmod(0o755)  # whatever the umask
    content = objects.read(file.oid, "blob", limit=max(file.size, 1))
    if file.mode == SYMLINK:
        os.symlink(content, os.fsencode(path))  # noqa: PTH211 - a target is bytes
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)
        os.fchmod(out.fileno(), 0o555 if file.mode == EXECUTABLE else 0o444)


def _compile(root: Path, python: Path) -> None:
    argv = [str(python), "-I", "-S", "-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash"]
    argv += ["-s", str(root), "-p", "/root/sia", str(root)]
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"LC_ALL": "C.UTF-8"},
        process_group=0,
        umask=0o022,
    ) as process:
        try:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (COMPILE_MEMORY, COMPILE_MEMORY))
            process.wait(COMPILE_SECONDS)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            process.kill()  # sources that don't compile (in time) are simply not cached
        except BaseException:
            process.kill()
            raise


def _sync(root: Path) -> None:
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
        sync_directory(Path(directory))
