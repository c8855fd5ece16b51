"""What a sandbox is, as plain values: what it sees, what it may write, what it may use up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Upper = Literal["disk", "memory"]  # where uppers lie


@dataclass(frozen=True)
class Bind:
    """A host file or directory shown read-only at `dest`. Its content must not have been written by an instance."""

    source: Path
    dest: str


@dataclass(frozen=True)
class Overlay:
    """A writable directory at `dest`: `lowers` (bottom first, never written) below a private `upper`.

    `upper` and `work` are existing directories on one file system, owned by the sandbox uid (`Host.make_upper`).
    """

    dest: str
    lowers: tuple[Path, ...]
    upper: Path
    work: Path


@dataclass(frozen=True)
class Limits:
    """Upper bounds; None = not limited. What enforced the memory bound is in the outcome (`memory_enforcer`)."""

    memory_mb: int | None = 2048
    processes: int | None = 256
    file_size_mb: int | None = 1024
    disk_mb: int | None = 2048  # blocks of all uppers together
    inodes: int | None = 200_000  # of all uppers together
    upper: Upper = "disk"  # "memory": a tmpfs of that size, full where a disk would be watched (`Host.space`)
    open_files: int | None = 1024
    tmp_mb: int = 256  # size of /tmp and of HOME, each
    shm_mb: int = 64
    seconds: float | None = None  # wall clock, from GO


@dataclass(frozen=True)
class SandboxSpec:
    """One sandbox. `command` is looked up in the PATH of `env`."""

    command: tuple[str, ...]
    workdir: str
    env: Mapping[str, str] = field(default_factory=dict)
    binds: tuple[Bind, ...] = ()
    overlays: tuple[Overlay, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)  # small read-only files made from memory, dest → content
    directories: tuple[str, ...] = ()  # empty mount points to create
    limits: Limits = Limits()
    hostname: str = "instance"
    network: Literal["none", "host"] | tuple[str, ...] = "none"  # a tuple: an allow-list of "host:port" (gate.py)
    python: Path | None = None  # interpreter whose installation (outside /usr) must be visible at its own path
    rootfs: Path | None = None  # a directory whose content takes the place of the host's /usr, /etc… (rootfs.py)
