"""Neutral places on the host for what instances write on and start from.

The kernel shows the paths of an overlay's layers inside, in `/proc/self/mountinfo`. So they lie in `.sia/layers/` under
names that only tell something with a key that no instance sees, and have the same form whether they belong to main,
to a trial or to a conformance check. For people and for `sia watch` there are links at the places with a meaning.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.host import Host

LAYERS = "layers"  # below a state directory; sandbox/orphans.py knows it too
KEY = ".key"
APP, DATA = "0", "d"  # names of the uppers of an instance's workdir and of its /root/data
FILES = Path("files/0")  # where the starting files of a workdir lie below their copy


def place(state: Path, meaning: Path) -> Path:
    """The directory that stands for the path `meaning` below `state`: always the same one. Does not make it."""
    relative = os.path.relpath(meaning, state)
    return state / LAYERS / name(state, relative)


def name(state: Path, text: str) -> str:
    """16 hex digits for a text, the same ones for this state directory as long as it exists."""
    return hashlib.blake2s(text.encode("utf-8", "surrogateescape"), key=_key(state), digest_size=8).hexdigest()


def link(meaning: Path, target: Path) -> None:
    """Let people find `target` (which need not exist yet) at `meaning`. A link that is there is left as it is."""
    meaning.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        meaning.symlink_to(os.path.relpath(target, meaning.parent))


def directory(state: Path, meaning: Path) -> Path:
    """`place`, made and linked. What an earlier version of this program made at `meaning` itself is used as it is."""
    if meaning.is_dir():
        return meaning.resolve()
    made = place(state, meaning)
    made.mkdir(mode=0o711, parents=True, exist_ok=True)
    link(meaning, made)
    return made


def remove(host: Host, meaning: Path) -> None:
    """Remove a link and what it stands for, or what lies at `meaning` itself."""
    if meaning.is_symlink():  # without `..`: the host knows ramdisks and mounts by the paths under which it made them
        host.remove(Path(os.path.normpath(meaning.parent / meaning.readlink())))
    host.remove(meaning)


def _key(state: Path) -> bytes:
    path = state / LAYERS / KEY
    try:
        return path.read_bytes()
    except FileNotFoundError:
        pass
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    fresh = path.with_name(f"{KEY}.{secrets.token_hex(8)}")
    fresh.touch(mode=0o600)
    fresh.write_bytes(secrets.token_bytes(32))
    try:
        with contextlib.suppress(FileExistsError):  # another process was faster: its key is the one
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()
    return path.read_bytes()
