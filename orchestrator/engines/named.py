"""Engines by name: `[engines.NAME]` of sia.toml, and `llama:MODEL`, which needs no entry there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from orchestrator.config import Engine

LLAMA = "llama:"
_FETCHED_WITHOUT_ASKING = ("smollm2",)  # small enough


def command_of(name: str, engines: Mapping[str, Engine]) -> tuple[str, ...] | None:
    """The argv list of an engine; None if there is none of that name."""
    if name in engines:
        return engines[name].command
    if name.startswith(LLAMA) and len(name) > len(LLAMA):
        return "python", "-m", "orchestrator.engines.llama", name.removeprefix(LLAMA)
    return None


def exists(name: str, engines: Mapping[str, Engine]) -> bool:
    """Whether there is an engine of that name."""
    return command_of(name, engines) is not None


def prepare(name: str, engines: Mapping[str, Engine], checkout: Path, say: Callable[[str], None]) -> None:
    """Before `llama:MODEL` is started: is all there that it needs? Fetches the smallest model if it is missing.

    Raises ConfigError that says what to install, UsageError what to fetch.
    """
    if name in engines or not name.startswith(LLAMA):
        return
    from orchestrator.engines import extras, models

    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError(
            "the extra 'llama' is not installed",
            where=f"engine {name}",
            fix=extras.install("llama"),
        )
    model = name.removeprefix(LLAMA)
    try:
        models.located(model, checkout)
    except UsageError:
        if model not in _FETCHED_WITHOUT_ASKING:
            raise
        models.fetch(model, say)


def log_name(name: str) -> str:
    """An engine's name as a part of a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)[-60:]
