"""How fast the command line starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.figure import Figure, alternate, command

SIA = Path(sys.executable).with_name("sia")


def measure() -> list[Figure]:
    """`sia --help` and `sia status` against `python -I -c pass`."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["git", "init", "-q", directory], check=True)
        times = alternate(
            15,
            bare=command([sys.executable, "-I", "-c", "pass"]),
            help=command([str(SIA), "--help"]),
            status=_inside(directory, [str(SIA), "status"]),
        )
    return [
        Figure(f"sia {name}", times[key] / times["bare"], 20, "python -I -c pass", _detail(times, key))
        for name, key in (("--help", "help"), ("status", "status"))
    ]


def _inside(directory: str, argv: list[str]) -> Callable[[], object]:
    environment = os.environ | {"NO_COLOR": "1"}
    return lambda: subprocess.run(
        argv, cwd=directory, env=environment, check=True, stdin=subprocess.DEVNULL, capture_output=True
    )


def _detail(times: dict[str, float], key: str) -> str:
    return f"{times[key] * 1000:.0f} ms against {times['bare'] * 1000:.1f} ms"
