"""The agent's own iteration log, as it left it in one trial's upper: read only to compare it with the journal."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sandbox.errors import UnsafePath
from sandbox.read import read_file

FILES_CAP = 5000  # files that are looked at
FILE_CAP = 32 * 1024 * 1024  # bytes of one file: the largest request is 16 MB, and escaping makes it longer
TOTAL_CAP = 512 * 1024 * 1024  # bytes of all
DEPTH_CAP = 32  # directories in one another: without a bound, paths grow until nothing can open them


class OwnLogs:
    """Iterates over (name below `iterations/`, content) of each regular file, one in memory at a time.

    Links, FIFOs and devices are passed over. Use it only after the instance has ended. `notes` says afterwards what
    was not looked at: a log that is too large to be compared must not pass for one that agrees.
    """

    def __init__(self, data_upper: Path) -> None:
        """`data_upper`: the upper of /root/data."""
        self._root = data_upper / "iterations"
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, in words."""
        return tuple(self._notes)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        seen = total = 0
        for relative in self._files():
            seen += 1
            if seen > FILES_CAP or total > TOTAL_CAP:
                self._note("too much to look at all of it")
                return
            try:
                content = read_file(self._root, relative, FILE_CAP + 1)
            except (UnsafePath, OSError):
                self._note("files that can't be read")
                continue
            total += len(content)
            if len(content) > FILE_CAP:
                self._note(f"a file of more than {FILE_CAP:,} bytes")
            yield relative, content[:FILE_CAP]

    def _files(self) -> Iterator[str]:
        """Names of the regular files, in order. No recursion: how deep directories go is the instance's choice."""
        try:
            if not stat.S_ISDIR(self._root.lstat().st_mode):
                return
        except FileNotFoundError:
            return
        except OSError:  # its own /root/data is closed to us: its doing, and no fault of ours
            self._note("directories that can't be read")
            return
        pending = [""]
        while pending:
            directory = pending.pop()
            try:
                with os.scandir(self._root / directory) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
            except OSError:
                self._note("directories that can't be read")
                continue
            deeper = []
            for entry in entries:
                relative = f"{directory}/{entry.name}" if directory else entry.name
                if entry.is_dir(follow_symlinks=False):
                    deeper.append(relative)
                elif entry.is_file(follow_symlinks=False):
                    yield relative
            if deeper and directory.count("/") >= DEPTH_CAP:
                self._note(f"directories nested deeper than {DEPTH_CAP}")
            else:
                pending += reversed(deeper)

    def _note(self, what: str) -> None:
        self._notes[f"the agent's own log holds {what}; the rest was compared"] = None


def kept_logs(trial_directory: Path) -> Path:
    """Where a finished trial's own iteration logs lie, compressed (`log_archive`)."""
    return trial_directory / "iterations.zst"
