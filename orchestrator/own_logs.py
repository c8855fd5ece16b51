"""The agent's own iteration log, as it left it in one trial's upper: compared with the journal, and kept whole.

It is hostile input: there may be any number of files, of any size, with holes. What is compared is bounded by what the
instance was answered, what is kept by what its files may take on the disk and by time, and both take the same memory
however much there is. Whatever is left out is said in `notes`.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orchestrator.log_archive import CHUNK, Packer
from orchestrator.untrusted import one_line
from sandbox.errors import UnsafePath
from sandbox.read import open_file

FILES_CAP = 5000  # files that are compared, if there were few answers
FILE_CAP = 32 * 1024 * 1024  # bytes of one file: the largest request is 16 MB, and escaping makes it longer
TOTAL_CAP = 512 * 1024 * 1024  # bytes of all that are compared, if the requests were small
DEPTH_CAP = 32  # directories in one another: without a bound, paths grow until nothing can open them
PER_BLOCK = 8  # bytes that are kept for each one of disk: some file systems compress, and holes take nothing
KEEP_SECONDS = 600.0  # for reading and packing: 3 GB take one minute on a slow machine


@dataclass(frozen=True)
class Bounds:
    """How much of a log is looked at; what an honest one can hold is known outside.

    `answers` that were given to requests of `asked` bytes; `disk`: bytes that its files may take, None = any number.
    """

    answers: int = 0
    asked: int = 0
    disk: int | None = None

    @property
    def files(self) -> int:
        """Files that are compared: one belongs to each answer."""
        return max(FILES_CAP, 2 * self.answers)

    @property
    def total(self) -> int:
        """Bytes that are compared: a log shows the request, escaped, and its answer."""
        return max(TOTAL_CAP, 2 * self.asked)

    @property
    def kept(self) -> int | None:
        """Bytes that are kept."""
        return None if self.disk is None else PER_BLOCK * self.disk


class OwnLogs:
    """Reads what lies in `iterations/`. Use it only after the instance has ended.

    Links, FIFOs and devices are passed over. `notes` says afterwards what was not looked at: a log that is too large
    to be compared must not pass for one that agrees.
    """

    def __init__(
        self, data_upper: Path, bounds: Bounds | None = None, go_on: Callable[[], None] = lambda: None
    ) -> None:
        """`data_upper`: the upper of /root/data. `go_on` is called now and then; what it raises ends the reading."""
        self._root = data_upper / "iterations"
        self._bounds, self._go_on = bounds or Bounds(), go_on
        self._left_out: dict[str, tuple[int, str]] = {}  # what → how often, and the first
        self._uncompared = self._cut = ""
        self._deadline = float("inf")

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, in words."""
        counted = (f"{count:,} {what}, the first: {first}" for what, (count, first) in self._left_out.items())
        return tuple(f"the agent's own log: {what}" for what in (*counted, self._uncompared, self._cut) if what)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """Name below `iterations/` and content of each file that is compared, one in memory at a time."""
        yield from self._compared(None)

    def keep(self, packer: Packer) -> Iterator[tuple[str, bytes]]:
        """The same, and pack every file on the way, whether it is compared or not. Complete when it is exhausted.

        Raises OSError when the archive can't be written.
        """
        self._deadline = time.monotonic() + KEEP_SECONDS
        yield from self._compared(packer)
        for note in self.notes:
            packer.left_out(note)

    def _compared(self, packer: Packer | None) -> Iterator[tuple[str, bytes]]:
        files = total = 0
        for name, file in self._opened():
            comparing = files < self._bounds.files and total <= self._bounds.total
            if not comparing and not self._uncompared:
                self._uncompared = f"from {_shown(name)} on it was not compared with the journal: it is too much"
            if not comparing and (packer is None or self._cut):
                return
            content = self._read(file, FILE_CAP, name) if comparing else b""
            if packer is not None and not self._cut:
                self._pack(packer, name, content, file)
            if comparing:
                files, total = files + 1, total + len(content)
                if os.fstat(file.fileno()).st_size > FILE_CAP:
                    self._note(f"files were compared up to {FILE_CAP:,} bytes", name)
                begun = time.monotonic()
                yield name, content
                self._deadline += time.monotonic() - begun  # comparing has a clock of its own

    def _pack(self, packer: Packer, name: str, begun: bytes, file: BinaryIO) -> None:
        """Pack one file, of which `begun` has been read, as far as there is room for it."""
        if not (why := self._full(packer, 0)):
            packer.start(name, os.fstat(file.fileno()).st_size)
            piece = begun or self._read(file, CHUNK, name)
            while piece and not (why := self._full(packer, len(piece))):
                packer.write(piece)
                piece = self._read(file, CHUNK, name)
        if why:
            self._cut = f"it is kept up to {_shown(name)}, not whole: {why}"

    def _full(self, packer: Packer, more: int) -> str | None:
        """Why `more` bytes can't be packed; None if they can."""
        self._go_on()
        most = self._bounds.kept
        if most is not None and packer.plain + more > most:
            return f"it is longer than {most:,} bytes, {PER_BLOCK} times what it may take on the disk"
        if time.monotonic() > self._deadline:
            return f"that took more than {KEEP_SECONDS:g} s"
        return packer.full

    def _opened(self) -> Iterator[tuple[str, BinaryIO]]:
        for name in self._files():
            self._go_on()
            try:
                file = open_file(self._root, name)
            except (UnsafePath, OSError):
                self._note("files that can't be read", name)
                continue
            with file:
                yield name, file

    def _read(self, file: BinaryIO, most: int, name: str) -> bytes:
        try:
            return file.read(min(most, max(0, os.fstat(file.fileno()).st_size - file.tell())))
        except OSError:
            self._note("files that can't be read to their end", name)
            return b""

    def _files(self) -> Iterator[str]:
        """Names of the regular files, in order. No recursion: how deep directories go is the instance's choice."""
        try:
            if not stat.S_ISDIR(self._root.lstat().st_mode):
                return
        except FileNotFoundError:
            return
        except OSError:  # its own /root/data is closed to us: its doing, and no fault of ours
            self._note("directories that can't be read", "")
            return
        pending = [("", [""])]  # directories, and the names in them that are still to be looked at, last first
        while pending:
            above, names = pending[-1]
            if not names:
                pending.pop()
                continue
            directory = _below(above, names.pop())
            files, deeper = self._listed(directory)
            yield from (_below(directory, name) for name in files)
            if deeper and len(pending) > DEPTH_CAP:
                self._note(f"directories nested deeper than {DEPTH_CAP}, which are left out", directory)
            else:
                pending.append((directory, deeper[::-1]))

    def _listed(self, directory: str) -> tuple[list[str], list[str]]:
        """Names of the regular files and of the directories in a directory, sorted."""
        files: list[str] = []
        directories: list[str] = []
        try:
            with os.scandir(self._root / directory) as found:
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        files.append(entry.name)
        except OSError:
            self._note("directories that can't be read", directory)
        return sorted(files), sorted(directories)

    def _note(self, what: str, name: str) -> None:
        count, first = self._left_out.get(what, (0, _shown(name)))
        self._left_out[what] = count + 1, first


def _below(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _shown(name: str) -> str:
    return one_line(name or "iterations", 80)


def kept_logs(trial_directory: Path) -> Path:
    """Where a finished trial's own iteration logs lie, compressed (`log_archive`)."""
    return trial_directory / "iterations.zst"
