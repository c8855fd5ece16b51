"""What a trial's instance changed on its disk, kept as JSON lines for people: its layers are removed at its end."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TextIO

from sandbox.diff import Change

NAME = "changes.jsonl"  # in the trial's directory: {"path", "kind", "directory", "size", "also"}; paths as it saw them
MOST = 10_000  # changes
MOST_CHARACTERS = 4 * 1024 * 1024  # of all lines: a path may be 64 kB long


class ChangeList:
    """Written as the changes are found. What it can't write it leaves out: it is for looking, not evidence."""

    def __init__(self, directory: Path) -> None:
        """A file of ours in a directory of ours; replaces an earlier one."""
        self._file: TextIO | None = None
        with contextlib.suppress(OSError):
            self._file = (directory / NAME).open("w", encoding="ascii")
        self._count = self._size = 0

    def add(self, place: str, change: Change) -> None:
        """One change below `place`. Beyond the bounds one last line says that there are more."""
        if self._file is None:
            return
        values = {
            "path": f"{place.rstrip('/')}/{change.path}",  # surrogate escapes of odd bytes are kept as \\udcXX
            "kind": change.kind,
            "directory": change.is_directory,
            "size": change.size,
            "also": change.also,
        }
        line = json.dumps(values) + "\n"
        self._count += 1
        self._size += len(line)
        try:
            if self._count > MOST or self._size > MOST_CHARACTERS:
                self._file.write('{"more": true}\n')
                self.close()
            else:
                self._file.write(line)
        except OSError:
            self.close()

    @property
    def full(self) -> bool:
        """Whether more would be left out."""
        return self._file is None

    def close(self) -> None:
        """No more. Can be called again."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
