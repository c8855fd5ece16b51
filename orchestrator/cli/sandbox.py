"""`sia sandbox run`: any command in a sandbox over the current directory, and what it changed."""

from __future__ import annotations

import contextlib
import dataclasses
import json as jsonlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from orchestrator import durable
from orchestrator.cli.sandbox_diff import LISTED, RECORD, show
from orchestrator.errors import UsageError
from orchestrator.untrusted import printable
from sandbox import advice, filesystems, layers
from sandbox.allowlist import AllowList
from sandbox.diff import Change, diff
from sandbox.errors import CannotIsolate, SandboxFailed
from sandbox.host import Host
from sandbox.process import Outcome, Sandbox
from sandbox.spec import Bind, Limits, Overlay, SandboxSpec

PATIENCE = 0.05  # seconds until a signal is passed on, at most
GRACE = 5.0  # seconds between Ctrl-C and the end
COPY_LIMIT = 4 << 30
PYTHON = Path(sys.executable)  # shown inside, so that programs of this environment run there


def run(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    network: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    rootfs: Path | None = None,
    ro: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    memory_mb: int = 2048,
    processes: int = 256,
    seconds: float | None = None,
    upper_mb: int | None = None,
    workdir: Path | None = None,
    keep: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run COMMAND in a sandbox over the current directory. The directory itself is never written.

    The exit code is the command's (128 + n after signal n). What it changed is listed on stderr afterwards.

    Parameters
    ----------
    command
        The command and its arguments, after `--`.
    network
        "none" (the default): no network at all; "host": this machine's; "allow:HOST:PORT", which may be given several
        times: only these, through a proxy that HTTP_PROXY names (docs/security.md).
    rootfs
        The top directory of an extracted image, to be used in place of this machine's /usr, /etc and so on.
    ro
        A further path to show, read-only. May be given several times.
    memory_mb
        Memory of all its processes together.
    processes
        Processes at the same time.
    seconds
        Wall clock time. Default: unlimited.
    upper_mb
        Keep what it writes in memory, with this much space, instead of on disk, where more than 2048 MB end it.
    workdir
        The directory to run in, instead of the current one.
    keep
        A new directory in which to keep what was written: its `upper` for `sia sandbox diff`, and the outcome.
    json
        Print the outcome and the changes as one line of JSON on stdout, after the command's own output.
    """
    if not command:
        raise UsageError("no command given", fix="sia sandbox run -- COMMAND [ARGUMENT…]")
    limits = _limits(memory_mb, processes, seconds, upper_mb)
    lower = _directory(workdir or Path.cwd())
    with _scratch(lower, keep) as scratch, Host.detect(scratch / "state") as host:
        layer = _layer(host, lower, scratch)
        space = host.space(scratch / "state" / "layers", limits)
        upper, work = host.make_upper(space, "0")
        overlay = Overlay(str(lower), (layer,), upper, work)
        outcome = _attend(host, _spec(command, overlay, _network(network), limits, rootfs, _existing(ro)))
        changes = list(diff((layer,), upper))
        if keep is not None:
            layers.freeze(host, upper, scratch / "upper")
            record = {"lowers": [str(layer)], "command": command, "outcome": dataclasses.asdict(outcome)}
            durable.write(scratch / RECORD, jsonlib.dumps(record).encode())
        host.remove(space)
    _report(outcome, changes, limits, json=json)
    return _exit_code(outcome)


def _spec(
    command: tuple[str, ...],
    overlay: Overlay,
    network: Literal["none", "host"] | tuple[str, ...],
    limits: Limits,
    rootfs: Path | None,
    shown: Sequence[Path],
) -> SandboxSpec:
    """The sandbox, in the directory that `overlay` lies over; `shown` are further paths."""
    return SandboxSpec(
        command=command,
        workdir=overlay.dest,
        env={"PATH": f"{PYTHON.parent}:/usr/local/bin:/usr/bin:/bin", "TERM": os.environ.get("TERM", "dumb")},
        binds=tuple(Bind(path.resolve(), str(path.resolve())) for path in shown),
        overlays=(overlay,),
        limits=limits,
        python=PYTHON,
        network=network,
        rootfs=rootfs,
    )


def _limits(memory_mb: int, processes: int, seconds: float | None, upper_mb: int | None) -> Limits:
    for name, given in (
        ("memory-mb", memory_mb),
        ("processes", processes),
        ("seconds", seconds),
        ("upper-mb", upper_mb),
    ):
        if given is not None and given <= 0:
            fix = "leave it out for the default, or give a number above 0"
            raise UsageError(f"--{name} {given:g}: a limit must be above 0", where="sia sandbox run", fix=fix)
    limits = Limits(memory_mb=memory_mb, processes=processes, seconds=seconds)
    return limits if upper_mb is None else dataclasses.replace(limits, disk_mb=upper_mb, upper="memory")


def _directory(path: Path) -> Path:
    if not path.is_dir():
        raise UsageError("there is no such directory", where=str(path.resolve()))
    return path.resolve()


def _network(words: tuple[str, ...]) -> Literal["none", "host"] | tuple[str, ...]:
    """What the options say: one of the two words alone, or an allow-list."""
    if words in ((), ("none",)):
        return "none"
    if words == ("host",):
        return "host"
    entries = tuple(word.removeprefix("allow:") for word in words)
    if not all(word.startswith("allow:") for word in words):
        fix = "--network none, --network host, or --network allow:HOST:PORT (again for each)"
        raise UsageError(f"not a network: {' '.join(words)!r}", where="sia sandbox run", fix=fix)
    AllowList(entries)
    return entries


def _existing(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    for path in paths:
        if not path.exists():
            raise UsageError("there is no such file or directory", where=str(path))
    return paths


@contextlib.contextmanager
def _scratch(lower: Path, keep: Path | None) -> Iterator[Path]:
    """A directory for the upper: outside the directory that it covers, and on a file system that can hold one."""
    if keep is not None:
        with _kept(lower, keep.absolute()) as directory:
            yield directory
        return
    refused = ""
    for place in (Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/dev/shm")):
        if place.is_dir() and os.access(place, os.W_OK) and not place.resolve().is_relative_to(lower):
            try:
                filesystems.check_upper(place)
            except CannotIsolate as error:
                refused = f"{refused}{error.where}: {error.what}; "
                continue
            with tempfile.TemporaryDirectory(prefix="sia-sandbox-", dir=place) as directory:
                Path(directory).chmod(0o711)
                yield Path(directory)
            return
    where = refused.rstrip("; ") or str(lower)
    raise CannotIsolate("there is no place for the sandbox's own files", where=where, fix="set TMPDIR to a local disk")


@contextlib.contextmanager
def _kept(lower: Path, keep: Path) -> Iterator[Path]:
    """The directory that stays, once its record is written."""
    if keep.parent.resolve().is_relative_to(lower):
        raise UsageError("lies in the directory that the sandbox shows", where=str(keep), fix="keep it elsewhere")
    try:
        keep.mkdir(mode=0o711)
    except OSError as error:
        raise UsageError(f"can't be created ({error.strerror})", where=str(keep), fix="name a new directory") from None
    try:
        yield keep
    finally:
        for name in ("state",) if (keep / RECORD).exists() else ("state", "upper", "copy", "."):
            shutil.rmtree(keep / name, ignore_errors=True)


def _layer(host: Host, lower: Path, scratch: Path) -> Path:
    """The directory as the sandbox's uid may own it: as root an id-mapped view, else (old kernels) a copy."""
    try:
        host.lend(lower)
    except SandboxFailed:
        print("sia: this file system has no id-mapped mounts; working on a copy of the directory", file=sys.stderr)
        layers.materialise((lower,), None, scratch / "copy", COPY_LIMIT)
        host.own(scratch / "copy")
        return scratch / "copy"
    return lower


def _attend(host: Host, spec: SandboxSpec) -> Outcome:
    """Run it to its end; TERM is passed on, Ctrl-C too, and then ends it."""
    sys.stdout.flush()
    received: list[int] = []
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in wanted}
    try:
        with Sandbox.start(host, spec, stdin=0, stdout=1, stderr=2) as sandbox:
            outcome = _wait(sandbox, received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if outcome.setup_error is not None:
        found = advice.advise(outcome.setup_error, host.bwrap)
        raise CannotIsolate(f"{found.cause}: {printable(outcome.setup_error)}", fix=found.fix)
    return outcome


def _wait(sandbox: Sandbox, received: list[int]) -> Outcome:
    """Pass signals on; a second Ctrl-C, or GRACE seconds after the first, ends everything."""
    end: float | None = None
    while True:
        outcome = sandbox.wait(PATIENCE)
        if outcome is not None:
            return outcome
        while received:
            number = received.pop(0)
            if number == signal.SIGINT:
                end = time.monotonic() + (GRACE if end is None else 0)
            sandbox.signal(number)
        if end is not None and time.monotonic() >= end:
            sandbox.kill()


def _exit_code(outcome: Outcome) -> int:
    return outcome.exit_code if outcome.exit_code is not None else 128 + (outcome.signal or 9)


def _report(outcome: Outcome, changes: list[Change], limits: Limits, *, json: bool) -> None:
    if json:
        record = {**dataclasses.asdict(outcome), "changes": [dataclasses.asdict(change) for change in changes]}
        print(jsonlib.dumps(record), flush=True)
        return
    if outcome.limit is not None:
        bounds = {
            "memory": f"{limits.memory_mb} MB of memory",
            "processes": f"{limits.processes} processes",
            "seconds": f"{limits.seconds:g} s" if limits.seconds else "",
            "disk": f"{limits.disk_mb} MB of disk",
            "inodes": f"{limits.inodes} files",
        }
        print(f"sia: ended by the limit of {bounds[outcome.limit]}", file=sys.stderr)
    for made in outcome.connections[:LISTED]:
        text = f"{made.sent} bytes sent, {made.received} received" if made.allowed and not made.detail else made.detail
        print(f"@ {printable(made.host) or '?'}:{made.port} {printable(text)}", file=sys.stderr)
    show(changes, sys.stderr)
