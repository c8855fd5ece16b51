"""The root file system that tests of `rootfs` share: made once per machine by scripts/test-rootfs, else they skip."""

from __future__ import annotations

import functools
import subprocess
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
