"""Which directories an interpreter needs, so that it runs inside at its own path."""

from __future__ import annotations

import functools
from pathlib import Path

from sandbox.errors import CannotIsolate

SYSTEM = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store", "/gnu/store")))


def roots(python: Path) -> tuple[Path, ...]:
    """`find_roots`, remembered as long as `python` itself stays what it is."""
    try:
        found = python.lstat()
    except OSError as error:
        raise _missing(python) from error
    return _remembered(python, (found.st_dev, found.st_ino, found.st_ctime_ns))


@functools.lru_cache(maxsize=64)
def _remembered(python: Path, identity: tuple[int, ...]) -> tuple[Path, ...]:
    return find_roots(python)


def _missing(python: Path) -> CannotIsolate:
    return CannotIsolate("the interpreter does not exist", where=str(python), fix="build the environment again")


def find_roots(python: Path) -> tuple[Path, ...]:
    """Directories outside the system's to show read-only: the virtual environment of `python` and, along its chain of
    symlinks (venv → pyenv, uv, conda, /usr/local…), every installation prefix. Nothing is executed to find out.

    Raises CannotIsolate if `python` does not exist or its prefix would show far more than an installation.
    """
    found: list[Path] = []
    link = python.absolute()
    for _ in range(40):
        if not link.exists():
            raise _missing(link)
        _add(found, _prefix(link))
        real_place = link.parent.resolve() / link.name
        if real_place != link:
            _add(found, _prefix(real_place))
        if not link.is_symlink():
            break
        target = link.readlink()
        link = Path(*_normal(link.parent / target))  # an absolute target replaces the parent
    return tuple(found)


def _normal(path: Path) -> list[str]:
    """Parts without `..`, as far as a text can tell; symlinked directories are met by resolving each parent."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and len(parts) > 1:
            parts[:] = list(Path(*parts).resolve().parent.parts)
        else:
            parts.append(part)
    return parts


def _prefix(executable: Path) -> Path | None:
    """The directory that holds `bin/`; None when the system's directories have it."""
    if any(executable.is_relative_to(place) for place in SYSTEM):
        return None
    prefix = executable.parent.parent if executable.parent.name in ("bin", "Scripts") else executable.parent
    looks_right = (prefix / "pyvenv.cfg").is_file() or any(prefix.glob("lib*/python3*"))
    if not looks_right or len(prefix.parts) < 2:
        raise CannotIsolate(
            "this does not look like a Python installation or virtual environment",
            where=str(prefix),
            fix="use an interpreter in PREFIX/bin with its library in PREFIX/lib/python3.x",
        )
    return prefix


def _add(found: list[Path], prefix: Path | None) -> None:
    if prefix is not None and not any(prefix.is_relative_to(known) for known in found):
        found[:] = [known for known in found if not known.is_relative_to(prefix)]
        found.append(prefix)
