"""Tasks in the Harbor layout (docs/tasks.md): read, checked, and copied for sandboxes."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from orchestrator.config import Positive, Seconds, read_toml, validate
from orchestrator.dockerfile import Copy, Layout, read_dockerfile
from orchestrator.errors import ConfigError, UsageError
from sandbox.allowlist import AllowList
from sandbox.errors import CannotIsolate

Split = Literal["train", "validation", "sealed"]
DEFAULT_WORKDIR = "/app"
DEFAULT_VERIFIER_TIMEOUT = 600.0  # seconds, as Harbor has it
INSTRUCTION_CAP = 1024 * 1024  # bytes

# Places that a task's files can't be, hold or lie in: the contract's, then what else a sandbox is made of.
PROTECTED = ("/root/sia", "/root/data", "/usr", "/etc", "/tmp", "/run", "/tests", "/logs")
SYSTEM = ("/bin", "/sbin", "/lib", "/lib64", "/proc", "/sys", "/dev", "/opt/agent-env", "/opt/verifier", "/home/agent")

# Variables that SIA sets for the instance, the oracle and the tests alike (instances.py, task_check.py, verifier.py),
# and those that only the instance or only the tests get: what a task gives them has no effect there.
FIXED = ("PATH", "HOME", "LANG", "TERM", "TMPDIR", "PYTHONDONTWRITEBYTECODE")
FIXED_IN_INSTANCE = ("PYTHONPATH",)
FIXED_IN_TESTS = ("PYTHONNOUSERSITE", "PYTHONSAFEPATH")  # the last one unless [verifier] safe_path = false


@dataclass(frozen=True)
class Task:
    """A task directory, read and checked. Times are in seconds; resources that the task leaves open are None."""

    name: str  # the directory's name
    path: Path
    instruction: str
    workdir: str
    env: Mapping[str, str]
    agent_timeout: float | None
    verifier_timeout: float
    cpus: int | None  # only compared with the machine: trials share its processors
    memory_mb: int | None
    storage_mb: int | None
    allow_internet: bool  # for the verifier; an instance has none but `network`
    safe_path: bool  # [verifier] safe_path = false marks the task forgeable
    split: Split
    metadata: Mapping[str, Any]
    notes: tuple[str, ...]
    copies: tuple[Copy, ...]  # starting files and their places inside
    places: tuple[str, ...]  # disjoint directories that hold them and the workdir; the workdir's comes first
    network: tuple[str, ...] = ()  # "host:port" that the instance and the verifier may reach through a proxy
    rootfs: Path | None = None  # the system that both run in, instead of the host's


class _Table(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    @field_validator("timeout_sec", "cpus", mode="before", check_fields=False)
    @classmethod
    def _number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool):
            return value
        if info.field_name == "cpus":
            return int(value) if isinstance(value, float) and value.is_integer() else value
        return float(value) if isinstance(value, int) else value


class _Agent(_Table):
    timeout_sec: Seconds | None = None


class _Verifier(_Table):
    timeout_sec: Seconds = DEFAULT_VERIFIER_TIMEOUT
    safe_path: bool = True


class _Environment(_Table):
    cpus: Positive | None = None
    memory_mb: Positive | None = None
    storage_mb: Positive | None = None
    memory: str | None = None  # Harbor's older form: "2G"
    storage: str | None = None
    gpus: Annotated[int, Field(ge=0, le=0)] = 0
    allow_internet: bool = False
    workdir: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    network: list[str] = Field(default_factory=list)
    rootfs: str | None = None

    @field_validator("memory", "storage")
    @classmethod
    def _size(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[1-9]\d*[MG]", value):
            raise ValueError("expected a whole number with M or G, such as 2G")
        return value

    def megabytes(self, which: Literal["memory", "storage"]) -> int | None:
        """The amount in MB, from the newer key or else from the older one."""
        newer: int | None = getattr(self, f"{which}_mb")
        older: str | None = getattr(self, which)
        if newer is not None or older is None:
            return newer
        return int(older[:-1]) * (1024 if older.endswith("G") else 1)


class _About(_Table):
    split: Split | None = None


class _File(_Table):
    agent: _Agent = _Agent()
    verifier: _Verifier = _Verifier()
    environment: _Environment = _Environment()
    metadata: dict[str, Any] = Field(default_factory=dict)
    task: _About = _About()
    solution: dict[str, Any] = Field(default_factory=dict)
    version: Any = None
    schema_version: Any = None


def load_task(directory: Path) -> Task:
    """Read a task. Raises ConfigError with the file, the fault and the fix."""
    toml = directory / "task.toml"
    try:
        file = validate(_File, read_toml(toml), toml)
    except ConfigError as error:
        raise ConfigError(error.what, where=error.where, fix="correct the named keys; see docs/tasks.md") from None
    _require_script(directory)
    rootfs = _rootfs(directory, file)
    layout = _layout(directory, file, built=rootfs is not None)
    workdir = _workdir(file, layout, toml)
    places = _places(workdir, layout.copies, toml)
    network = _network(file, toml)
    env = {**layout.env, **file.environment.env}
    _check_env(env, toml)
    notes = [*(f"task.toml: unknown key {key}" for key in _unknown(file)), *layout.notes, *_without_effect(env, file)]
    if file.environment.allow_internet:
        notes.append(f"the verifier has the host's network; the instance has {'its own' if network else 'none'}")
    if (file.environment.cpus or 0) > (os.cpu_count() or 1):
        notes.append(f"asks for {file.environment.cpus} processors, this machine has {os.cpu_count()}")
    split = file.task.split or file.metadata.get("split", "train")
    if split not in ("train", "validation", "sealed"):
        what = f"metadata.split: train, validation or sealed (got {split!r})"
        raise ConfigError(what, where=str(toml), fix="correct the named key; see docs/tasks.md")
    return Task(
        name=directory.resolve().name,
        path=directory.resolve(),
        instruction=_instruction(directory / "instruction.md"),
        workdir=workdir,
        env=env,
        agent_timeout=file.agent.timeout_sec,
        verifier_timeout=file.verifier.timeout_sec,
        cpus=file.environment.cpus,
        memory_mb=file.environment.megabytes("memory"),
        storage_mb=file.environment.megabytes("storage"),
        allow_internet=file.environment.allow_internet,
        safe_path=file.verifier.safe_path,
        split=split,
        metadata=file.metadata,
        notes=tuple(notes),
        copies=tuple(layout.copies),
        places=places,
        network=network,
        rootfs=rootfs,
    )


def find_tasks(patterns: Sequence[str], root: Path) -> list[Task]:
    """The tasks that directories or glob patterns (relative to `root`) name, in order, each once.

    A pattern takes the directories that hold a `task.toml`. Raises ConfigError when one names no task, when two
    tasks have the same name, or when a task can't be used.
    """
    directories: dict[Path, None] = {}
    for pattern in patterns:
        base, relative = (Path("/"), pattern.lstrip("/")) if pattern.startswith("/") else (root, pattern)
        if not any(sign in pattern for sign in "*?["):
            found = [base / relative]
            if not found[0].is_dir():
                raise UsageError("no such task directory", where=str(found[0]), fix="name a directory with a task.toml")
        else:
            found = sorted(path for path in base.glob(relative) if (path / "task.toml").is_file())
        if not found:
            raise UsageError(f"no task matches {pattern!r}", where=str(root), fix="name directories with a task.toml")
        directories.update(dict.fromkeys(path.resolve() for path in found))
    names: dict[str, Path] = {}
    for directory in directories:
        other = names.setdefault(directory.name, directory)
        if other != directory:
            fix = "rename one of the directories"
            raise ConfigError(f"two tasks are named {directory.name!r} (also {other})", where=str(directory), fix=fix)
    return [load_task(directory) for directory in directories]


def _require_script(directory: Path) -> None:
    script = directory / "tests" / "test.sh"
    if not script.is_file():
        fix = "write tests/test.sh, which puts a number into /logs/verifier/reward.txt"
        raise ConfigError("the task has no tests/test.sh", where=str(directory), fix=fix)


def _instruction(path: Path) -> str:
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        fix = "write what the user asks into instruction.md"
        raise ConfigError(f"can't be read: {error.strerror}", where=str(path), fix=fix) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 (byte {error.start})", where=str(path), fix="save the file as UTF-8") from None
    if not text.strip() or len(content) > INSTRUCTION_CAP:
        fix = f"write what the user asks, in at most {INSTRUCTION_CAP:,} bytes"
        raise ConfigError("empty" if not text.strip() else f"{len(content):,} bytes long", where=str(path), fix=fix)
    return text


def _network(file: _File, toml: Path) -> tuple[str, ...]:
    try:
        AllowList(file.environment.network)
    except CannotIsolate as error:
        raise ConfigError(f"environment.network: {error.where}: {error.what}", where=str(toml), fix=error.fix) from None
    return tuple(file.environment.network)


def _rootfs(directory: Path, file: _File) -> Path | None:
    """The directory that the task names, relative to its own. It must not be a part of the task: what is in a task is
    hashed and copied."""
    if file.environment.rootfs is None:
        return None
    path = (directory / file.environment.rootfs).resolve()
    what = fix = ""
    if not path.is_dir():
        what, fix = f"there is no directory {path}", "extract an image there, or make one with debootstrap"
    elif path.is_relative_to(directory.resolve()) or directory.resolve().is_relative_to(path):
        what, fix = "it lies in the task's directory, or holds it", "keep it beside the tasks"
    if what:
        raise ConfigError(f"environment.rootfs: {what}", where=str(directory / "task.toml"), fix=fix)
    return path


def _layout(directory: Path, file: _File, *, built: bool) -> Layout:
    """The starting files: what a Dockerfile copies, or without one all of environment/ into the workdir."""
    environment = directory / "environment"
    workdir = file.environment.workdir or DEFAULT_WORKDIR
    if (environment / "Dockerfile").is_file():
        return read_dockerfile(environment / "Dockerfile", workdir, built=built)
    compose = next(environment.glob("docker-compose.y*ml"), None)
    if compose:
        raise ConfigError("several containers are not supported", where=str(compose), fix="use one environment")
    return Layout(copies=[Copy(environment, workdir)] if environment.is_dir() else [])


def _workdir(file: _File, layout: Layout, toml: Path) -> str:
    workdir = file.environment.workdir
    if workdir is None:
        workdir = layout.workdir or DEFAULT_WORKDIR
    if (
        not workdir.startswith("/")
        or workdir.startswith("//")
        or posixpath.normpath(workdir) != workdir
        or "\0" in workdir
        or len(workdir) > 200
    ):
        fix = 'write it like "/app": absolute, without `.`, `..` or a slash at the end'
        raise ConfigError(
            f"environment.workdir: {workdir[:60]!r} is not a plain absolute path", where=str(toml), fix=fix
        )
    return workdir


def _places(workdir: str, copies: Sequence[Copy], toml: Path) -> tuple[str, ...]:
    """The fewest disjoint directories that hold the workdir and every copy."""
    wanted = {workdir, *(copy.dest if copy.source.is_dir() else posixpath.dirname(copy.dest) for copy in copies)}
    kept = sorted(place for place in wanted if not any(_within(place, other) for other in wanted if other != place))
    for place in kept:
        if place in ("/", "//") or any(_within(place, other) or _within(other, place) for other in PROTECTED + SYSTEM):
            what = f"{place} is, holds or lies in a protected place ({', '.join(PROTECTED)} or /)"
            raise ConfigError(what, where=str(toml), fix="choose another workdir or place of files, such as /app")
    return tuple(sorted(kept, key=lambda place: not _within(workdir, place)))


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _check_env(env: Mapping[str, str], toml: Path) -> None:
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or "\0" in value:
            raise ConfigError(f"environment.env: {name!r} is not a variable", where=str(toml), fix="correct the name")
        if name.startswith("SIA_"):
            what = f"environment.env: {name} belongs to the contract of instances"
            raise ConfigError(what, where=str(toml), fix="choose a name that does not begin with SIA_")


def _without_effect(env: Mapping[str, str], file: _File) -> list[str]:
    """Of a task's variables, those that SIA sets itself."""
    in_tests = FIXED_IN_TESTS if file.verifier.safe_path else FIXED_IN_TESTS[:-1]
    places = ((FIXED, ""), (FIXED_IN_INSTANCE, " in the instance"), (in_tests, " in the tests"))
    return [
        f"environment.env: {name} is set by SIA, so this value has no effect{where}"
        for names, where in places
        for name in names
        if name in env
    ]


def _unknown(model: BaseModel, prefix: str = "") -> list[str]:
    names = [prefix + name for name in (model.model_extra or {})]
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            names += _unknown(value, f"{prefix}{name}.")
    return names
