"""Diff of an upper of 200,000 files, against a walk that looks at each of them."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Figure, alternate
from sandbox.diff import diff

DIRECTORIES, FILES = 400, 500
RUNS = 3
LOWERS = 3


def measure() -> list[Figure]:
    """New files above several layers; and files that were copied up and not changed."""
    memory = Path("/dev/shm")  # what is measured is our work, not the disk's
    with tempfile.TemporaryDirectory(prefix="sia-bench-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        place = Path(name)
        lowers = tuple(place / f"lower{number}" for number in range(LOWERS))
        for lower in lowers:
            (lower / "0").mkdir(parents=True)
        _fill(place / "upper", DIRECTORIES)
        for tree in ("below", "copied"):
            _fill(place / tree, DIRECTORIES // 20)

        def walk(tree: str = "upper") -> None:
            assert sum(1 for top, _, names in os.walk(place / tree) for name in names if os.lstat(f"{top}/{name}"))

        def walk_few() -> None:
            walk("copied")

        def added() -> None:
            assert sum(1 for _ in diff(lowers, place / "upper")) == DIRECTORIES * (FILES + 1) - 1

        def unchanged() -> None:
            assert sum(1 for _ in diff((place / "below",), place / "copied")) == 0

        start = time.perf_counter()
        medians = alternate(RUNS, walk=walk, added=added, walk_few=walk_few, unchanged=unchanged)
        detail = ", ".join(f"{key} {seconds:.2f} s" for key, seconds in medians.items())
        detail += f" ({DIRECTORIES * FILES} files, {time.perf_counter() - start:.0f} s in all)"
    yardstick = "os.walk + lstat of the same tree"
    return [
        Figure("diff of 200,000 new files", medians["added"] / medians["walk"], 6.0, yardstick, detail),
        Figure("diff of 10,000 copied-up files", medians["unchanged"] / medians["walk_few"], 25.0, yardstick),
    ]


def _fill(top: Path, directories: int) -> None:
    for directory in range(directories):
        (top / str(directory)).mkdir(parents=True)
        for number in range(FILES):
            with open(top / str(directory) / str(number), "wb") as file:
                file.write(b"content\n")
