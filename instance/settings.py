"""Where things lie and which engine is used: from the environment inside a sandbox, from the command line outside."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from instance.errors import StartError

SANDBOX_DATA, SANDBOX_CODE = Path("/root/data"), Path("/root/sia")


class Settings(NamedTuple):
    """One start of the agent. Exactly one of `engine_fd` and `engine_command` is set."""

    code: Path  # the directory that holds instance/, procedures/, action_schema.xsd
    data: Path
    engine_fd: int | None
    engine_command: tuple[str, ...]
    deterministic: bool
    run_again: bool  # scripts that a crash cut off are started once more


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings of this process; StartError says what is missing. `--help` prints and exits."""
    engine, data, run_again = "", "", False
    if arguments:  # argparse takes as long to import as the rest of the start, and a sandbox passes no arguments
        engine, data, run_again = _command_line(arguments)
    descriptor: int | None = None
    if not engine:
        number = environment.get("SIA_ENGINE_FD", "")
        if not number.isdecimal():
            raise StartError(
                "no engine: SIA_ENGINE_FD is not set to the number of a socket.\n"
                "  fix: outside of a sandbox, start it with --engine 'COMMAND'"
            )
        descriptor = int(number)
    return Settings(
        code=Path(__file__).resolve().parent.parent,
        data=Path(data).absolute() if data else SANDBOX_DATA if descriptor is not None else Path.cwd() / "sia-data",
        engine_fd=descriptor,
        engine_command=_split(engine),
        deterministic=environment.get("SIA_DETERMINISTIC") == "1",
        run_again=run_again,
    )


def _command_line(arguments: Sequence[str]) -> tuple[str, str, bool]:
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m instance",
        description="The standard agent, at this terminal: type messages, read answers; Ctrl-C saves and stops. "
        "It runs the scripts that the engine answers, as you, WITHOUT a sandbox.",
    )
    parser.add_argument("--engine", default="", metavar="COMMAND", help="an engine program, started on a socket pair")
    parser.add_argument("--data", default="", metavar="DIR", help="logs, state and notes (default: ./sia-data)")
    parser.add_argument(
        "--run-again",
        action="store_true",
        help="start scripts that a crash cut off once more (default: only show them)",
    )
    options = parser.parse_args(arguments)
    return options.engine, options.data, options.run_again


def _split(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise StartError(f"--engine {command!r} can't be split into words: {error}") from error
    if command and not words:
        raise StartError("--engine is empty")
    return words


def data_directories(data: Path) -> None:
    """Make what the agent and its model expect below the data directory; StartError if that fails."""
    try:
        for name in ("state", "iterations", "tasks", "user"):
            (data / name).mkdir(parents=True, exist_ok=True)
        if not os.access(data, os.W_OK):
            raise PermissionError(f"{data} is not writable")
    except OSError as error:
        raise StartError(f"the data directory can't be used: {error}\n  fix: pass --data DIR") from error
