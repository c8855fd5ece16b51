"""Python environments of agents and of the verifier: built once per set of requirements, shared, read-only.

An environment is a virtual environment at its final path with a marker file that is written last; one without the
marker was interrupted and is built anew. The base interpreter is the one that SIA runs on; SIA_PYTHON names another.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator import durable, installers, scratch, uses
from orchestrator.errors import ConfigError, Failed, Refused
from orchestrator.home import Home
from orchestrator.requirements import Requirement, parse
from orchestrator.verifier_packages import REQUIREMENTS

FORMAT = 1  # part of the key: raise it when environments have to be built anew
MARKER = ".sia-complete"


def agent_environment(home: Home, requirements: bytes, *, build: bool) -> Path:
    """The virtual environment `.sia/envs/<hash>` for a requirements file.

    Raises Refused for a file that is not `name==version` lines with hashes, and when the environment does not exist
    and `build` is false; Failed when building it fails.
    """
    entries = parse(requirements)
    base = interpreter()
    path = home.environments / _key(entries, base)
    if build or _complete(path):
        uses.use(use_lock(path))
    if not _complete(path):
        if not build:
            listed = ", ".join(f"{entry.name} {entry.version}" for entry in entries) or "no packages"
            raise Refused(
                f"needs a Python environment that has not been built ({listed})",
                where=str(path),
                fix="build it: `sia env build CANDIDATE`; or set `build_environments = true` under [agent] in sia.toml",
            )
        _build(path, entries, base, home.cache)
    return path


def use_lock(path: Path) -> Path:
    """The lock of an environment that processes work with (see `orchestrator.uses`)."""
    return path.with_suffix(".use")


def name_of(requirements: bytes, base: Path) -> str:
    """The directory name of the environment for a requirements file with this interpreter. Raises Refused."""
    return _key(parse(requirements), base)


def verifier_environment(home: Home) -> Path:
    """python3 and pinned pytest for verifiers; built at the first call. Raises Failed."""
    return agent_environment(home, REQUIREMENTS, build=True)


def base_python(environment: Path) -> Path:
    """The interpreter that an environment was made from, at its own path on the host; safe to run outside a sandbox.

    From our marker, not from `bin/python`: that, and `.pth` files that it runs, belong to the packages.
    """
    return Path(json.loads((environment / MARKER).read_bytes())["python"])


def _linked(environment: Path) -> Path:
    """Where `bin/python` of an environment leads to."""
    return (environment / "bin" / "python").resolve()


def interpreter() -> Path:
    """The base interpreter of new environments: SIA_PYTHON, else the one that SIA runs on. Raises ConfigError."""
    chosen = os.environ.get("SIA_PYTHON") or getattr(sys, "_base_executable", None) or sys.executable
    found = shutil.which(chosen)
    if not found:
        raise ConfigError("no such interpreter", where=f"SIA_PYTHON={chosen}", fix="name a Python 3.11 or newer")
    return Path(found).resolve()


@functools.cache
def _version(base: Path) -> str:
    """`3.11` and the implementation, as the interpreter says; ours is known without starting it."""
    if base == Path(getattr(sys, "_base_executable", None) or sys.executable).resolve():
        return f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
    code = "import sys; print(sys.implementation.name, '%d.%d' % sys.version_info[:2])"
    done = subprocess.run([base, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, env={})
    words = done.stdout.split()
    if done.returncode or len(words) != 2 or tuple(map(int, words[1].split("."))) < (3, 11):
        what = "not a usable Python 3.11 or newer"
        raise ConfigError(what, where=str(base), fix="name another interpreter in SIA_PYTHON")
    return " ".join(words)


def _key(entries: tuple[Requirement, ...], base: Path) -> str:
    parts = [FORMAT, str(base), _version(base), platform.machine(), [entry.line() for entry in entries]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _complete(path: Path) -> bool:
    """Whether it was finished and its base interpreter is still there (a system upgrade can remove it)."""
    return (path / MARKER).exists() and (path / "bin" / "python").exists()


def _build(path: Path, entries: tuple[Requirement, ...], base: Path, cache: Path) -> None:
    with scratch.writing(path), _lock(path.with_suffix(".lock")):
        if _complete(path):
            return  # another process was faster
        started = time.monotonic()
        requirements = "".join(f"{entry.line()}\n" for entry in entries)
        try:
            if entries:
                used = installers.install(path, requirements, base, cache)
            else:
                used = "nothing to install"
                installers.create(base, path, cache)
            if _linked(path) != base:
                fix = "leave out the package that does this"
                raise Failed("a package replaces the environment's interpreter", where=str(path), fix=fix)
            installers.compile_sources(path, base)
            durable.write(path / "requirements.txt", requirements.encode())
            _make_readable(path)
            subprocess.run(["sync", "-f", path], check=False, stdin=subprocess.DEVNULL, capture_output=True)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        about = {"python": str(base), "installer": used, "seconds": round(time.monotonic() - started, 2)}
        durable.write(path / MARKER, json.dumps(about).encode() + b"\n")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_readable(root: Path) -> None:
    """Instances may run as another uid; wheels may hold files without read permission for others."""
    for directory, _, names in os.walk(root):
        Path(directory).chmod(0o755)
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod((path.stat().st_mode | 0o444) & 0o755)
