"""What an instance changed: its upper layer compared with the layers below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["added", "modified", "deleted", "type", "mode"]


@dataclass(frozen=True)
class Change:
    """One changed path, relative; bytes that are not UTF-8 are surrogate-escaped (`os.fsencode` undoes it)."""

    path: str
    kind: Kind
    is_directory: bool
    size: int  # of the new content in bytes; 0 for deletions and everything that is not a regular file


def diff(lowers: Sequence[Path], upper: Path) -> Iterator[Change]:
    """Changes of `upper` (and nothing else) against `lowers` (bottom first), sorted by path.

    A copy-up without a change of content, type or mode is no change. Touch an upper only after its sandbox has ended.
    """
    raise NotImplementedError
