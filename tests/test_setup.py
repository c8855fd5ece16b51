"""scripts/setup says what is missing before it fetches anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parent.parent / "scripts" / "setup"


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("git version 2.34.1", "git version 2.34.1 is too old"),
        ("git version 1.99.0 (Somebody's)", "git version 1.99.0 (Somebody's) is too old"),
        ("", "git not found"),
    ],
)
def test_git_is_looked_at_first(tmp_path: Path, version: str, said: str) -> None:
    """The git on PATH only tells its version: an old one can't be had here."""
    (tmp_path / "scripts").mkdir()
    setup = shutil.copy(SETUP, tmp_path / "scripts" / "setup")
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text(f'#!/bin/sh\necho "{version}"\nexit {0 if version else 127}\n', encoding="utf-8")
    git.chmod(0o755)
    environment = os.environ | {"PATH": f"{git.parent}:{os.environ['PATH']}"}
    done = subprocess.run([setup], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78
    assert done.stderr.startswith(f"setup: {said}\nsetup: fix: install git")
    assert not (tmp_path / ".venv").exists()
