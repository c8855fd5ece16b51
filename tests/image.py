"""The root file system that tests of `rootfs` share: made once per machine by scripts/test-rootfs, else they skip."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/test-rootfs"
TIMEOUT = 900  # seconds for debootstrap on a slow line


@functools.cache
def _made() -> tuple[Path | None, str]:
    try:
        made = subprocess.run([SCRIPT], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return None, f"debootstrap took more than {TIMEOUT} s"
    if made.returncode != 0:
        return None, (made.stderr.strip().splitlines() or ["no reason given"])[-1]
    return Path(made.stdout.strip()), ""


@pytest.fixture
def image() -> Path:
    """Its directory."""
    path, reason = _made()
    if path is None:
        pytest.skip(f"no root file system to test with: {reason}")
    return path


@pytest.fixture
def own_python() -> None:
    """The interpreter here has a prefix of its own: the system's lies in /usr, where the image's is inside."""
    if sys.base_prefix == "/usr":
        pytest.skip("this Python is the system's, it can't run in another root file system (a refusal says so)")
