"""Files that are written whole or not at all.

Two levels: every write goes to a temporary file that is renamed, so a crash of the process leaves the old file or the
new one. `durable` adds fsync of file and directory, so that a power cut does too; few writes need it.
"""

from __future__ import annotations

import os
from pathlib import Path

try:  # hashlib loads OpenSSL, which takes longer than all of this package
    from _sha2 import sha256 as _sha256  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    try:
        from _sha256 import sha256 as _sha256  # type: ignore[import-not-found, no-redef, unused-ignore]
    except ImportError:
        from hashlib import sha256 as _sha256


def write_whole(path: Path, content: str, *, durable: bool = False) -> None:
    """Replace `path` by `content` (UTF-8). Raises OSError; the old file is then still there."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(content.encode("utf-8", "surrogatepass"))
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal."""
    return str(_sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
