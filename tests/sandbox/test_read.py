"""Reading what an instance left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.errors import UnsafePath
from sandbox.read import open_beneath, read_file


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file").write_bytes(b"0123456789")
    (root / "link").symlink_to("sub/file")
    (root / "away").symlink_to(tmp_path)
    os.mkfifo(root / "fifo")
    return root


def test_regular_files_are_read_up_to_the_cap(tree: Path) -> None:
    assert read_file(tree, "sub/file", 100) == b"0123456789"
    assert read_file(tree, "sub/file", 4) == b"0123"


@pytest.mark.parametrize(
    "name", ["link", "away/secret", "../secret", "/etc/passwd", "fifo", "sub", "sub/../../secret", "a\0b"]
)
def test_everything_else_is_refused(tree: Path, name: str) -> None:
    with pytest.raises(UnsafePath):
        read_file(tree, name, 100)


@pytest.mark.parametrize("name", ["missing", "sub/missing", "sub/file/more"])
def test_missing_is_missing(tree: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tree, name, 100)


def test_directories_can_be_opened(tree: Path) -> None:
    descriptor = open_beneath(tree, "sub", os.O_RDONLY | os.O_DIRECTORY)
    assert os.listdir(descriptor) == ["file"]  # noqa: PTH208
    os.close(descriptor)
