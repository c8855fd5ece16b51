"""TOML files that people write, and the words for what is wrong in them; no pydantic here: engines start fast."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """The parsed file. Raises ConfigError that names the file and the line."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError("file not found", where=str(path), fix="write it, or name another file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8 (byte {error.start})", where=str(path), fix="save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}", where=str(path), fix="correct that line") from None
    except OSError as error:
        raise ConfigError(f"can't be read: {error.strerror}", where=str(path), fix="name a readable file") from None


def unknown_key(place: str, known: Iterable[str]) -> str:
    """In words: a key that does not exist, and those that do."""
    return f"{place}: unknown key (known: {', '.join(known)})"


def wrong_value(place: str, wanted: str, given: Any) -> str:
    """In words: what a place should hold, and what it holds."""
    return f"{place}: {wanted} (got {given!r:.60})"
