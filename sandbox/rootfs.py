"""Another system than the host's as the base of a sandbox: an extracted image, or one made with debootstrap.

Its directories are shown read-only in place of the host's /usr, /etc and so on. Where something of ours is mounted at
or below a directory of it (/root/sia, /opt/agent-env, /etc/passwd…), that directory is made anew and its entries are
shown in it one by one: so nothing is ever mounted or created on a path that goes through the image, and its symlinks,
which stay symlinks, are only followed inside, when the sandbox is closed.

A mount costs a launch some 0.2 ms, and an image's /etc has some 70 entries. So where only the files that every sandbox
has are put there, /etc is a read-only overlay of theirs over the image's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox import filesystems
from sandbox.errors import CannotIsolate, UnsafePath
from sandbox.read import open_beneath, read_file

OURS = ("/proc", "/sys", "/dev", "/tmp", "/run")  # never the image's
LAYERS = "rootfs-etc"  # below `kept`
ACCOUNT_BYTES = 256 * 1024  # of passwd and group


@dataclass(frozen=True)
class Base:
    """An image's directory, as the sandbox uid may read it. `kept`: where files for its /etc can be kept."""

    root: Path
    uid: int
    gid: int
    kept: Path | None = None

    def merge_etc(
        self, files: Mapping[str, bytes], mounts: Iterable[str], place: Callable[[Path], Path]
    ) -> tuple[list[str], Mapping[str, bytes]]:
        """bwrap options for an /etc that holds `files` and the image's others, and those of `files` that are not in it.

        No options and all of `files` where /etc can't be made so: something else is mounted below it, the image has
        none that the sandbox uid may read, or it lies on a file system that may be no layer.
        """
        ours = {name: content for name, content in files.items() if name.startswith("/etc/")}
        fits = ours and not any(name == "/etc" or (name.startswith("/etc/") and name not in ours) for name in mounts)
        if self.kept is None or not fits or any(name.count("/") > 2 for name in ours) or not self._entries("/etc"):
            return [], files
        if not filesystems.can_be_layer(self.root) or not filesystems.can_be_layer(self.kept):
            return [], files
        layer = _layer(self.kept, ours)
        sources = ["--overlay-src", f"{place(self.root)}/etc", "--overlay-src", str(place(layer))]
        return [*sources, "--ro-overlay", "/etc"], {name: files[name] for name in files if name not in ours}

    def options(self, mounts: Iterable[str], place: Callable[[Path], Path]) -> list[str]:
        """bwrap options that show the image, and make every directory above `mounts` (absolute paths inside)."""
        leaves = {*OURS, *mounts}
        inner = {"/"}
        for dest in leaves:
            inner.update(str(parent) for parent in Path(dest).parents)
        top = place(self.root)
        return self._directory("", top, frozenset(leaves), frozenset(inner))

    def _directory(self, path: str, top: Path, leaves: frozenset[str], inner: frozenset[str]) -> list[str]:
        """The entries of the image's directory `path` ("" is its top) that are not ours."""
        options: list[str] = []
        entries = self._entries(path)
        for name, status in sorted(entries.items()):
            dest = f"{path}/{name}"
            if dest in leaves or dest in inner:
                continue
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(f"{self.root}{dest}")  # noqa: PTH115
                options += ["--symlink", target, dest]
            elif stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
                options += ["--ro-bind", f"{top}{dest}", dest]
        for dest in sorted(inner - leaves):
            parent, _, name = dest.rpartition("/")
            if not name or parent != path or self._within(dest, leaves):
                continue
            options += ["--dir", dest]
            options += self._directory(dest, top, leaves, inner)
        return options

    @staticmethod
    def _within(dest: str, leaves: frozenset[str]) -> bool:
        return any(str(parent) in leaves for parent in Path(dest).parents)

    def _entries(self, path: str) -> Mapping[str, os.stat_result]:
        """What the directory holds; nothing if it is none, or if the sandbox uid may not pass it."""
        try:
            descriptor = open_beneath(self.root, path.lstrip("/") or ".", os.O_RDONLY | os.O_DIRECTORY)
        except (OSError, UnsafePath):
            return {}
        try:
            if not self._passable(os.fstat(descriptor)):
                return {}
            with os.scandir(descriptor) as found:
                return {entry.name: entry.stat(follow_symlinks=False) for entry in found}
        finally:
            os.close(descriptor)

    def _passable(self, status: os.stat_result) -> bool:
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid == self.gid else 0
        return bool(status.st_mode >> shift & stat.S_IXOTH)

    def has_directory(self, dest: str) -> bool:
        """Whether the image has a directory there, with no symlink on the way."""
        try:
            os.close(open_beneath(self.root, dest.lstrip("/") or ".", os.O_PATH | os.O_DIRECTORY))
        except (OSError, UnsafePath):
            return False
        return True

    def etc_files(self, made: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """`made` (passwd, group… of every sandbox), with the image's other accounts, and no resolver of its own."""
        files = {"/etc/resolv.conf": b"", **made}
        for name in ("/etc/passwd", "/etc/group"):
            files[name] = self._accounts(name, files[name])
        return files

    def _accounts(self, name: str, ours: bytes) -> bytes:
        try:
            theirs = read_file(self.root, name.lstrip("/"), ACCOUNT_BYTES)
        except (OSError, UnsafePath):
            return ours
        taken = [line.split(b":") for line in ours.splitlines()]
        names, numbers = {fields[0] for fields in taken}, {fields[2] for fields in taken}
        for line in theirs.splitlines():
            fields = line.split(b":")
            if len(fields) >= 4 and fields[0] not in names and fields[2] not in numbers:
                ours += line + b"\n"
        return ours


def _layer(kept: Path, files: Mapping[str, bytes]) -> Path:
    """A directory with these files of /etc, made once for each content; whole or not there, after a power cut too."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(b"%s\0%d\0%s" % (name.encode(), len(content), content))
    layer = kept / LAYERS / digest.hexdigest()[:24]
    if not layer.exists():
        layer.parent.mkdir(exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".making-", dir=layer.parent))
        for name, content in files.items():
            with (fresh / Path(name).name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), 0o444)
                os.fsync(file.fileno())
        fresh.chmod(0o755)
        try:
            fresh.rename(layer)
        except OSError:  # another launch has just made it
            shutil.rmtree(fresh)
            if not layer.exists():
                raise
    return layer


def look(root: Path, uid: int, gid: int, kept: Path | None = None) -> Base:
    """The image at `root`. Raises CannotIsolate if there is none, or if it is the host itself."""
    fix = "name the top directory of an extracted image, or of one made with debootstrap"
    try:
        real = root.resolve(strict=True)
        names = {entry.name for entry in os.scandir(real)}
    except OSError as error:
        raise CannotIsolate(f"the rootfs can't be read ({error.strerror})", where=str(root), fix=fix) from None
    if real == Path("/"):
        raise CannotIsolate(
            "the host's own root is no rootfs", where=str(root), fix="leave `rootfs` out, or name another"
        )
    if "usr" not in names and not names >= {"bin", "lib"}:
        raise CannotIsolate("this is no root file system: it has no usr", where=str(root), fix=fix)
    return Base(real, uid, gid, kept)
