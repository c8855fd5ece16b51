"""How an optional part of SIA (an extra of pyproject.toml) is installed."""

from __future__ import annotations

import shlex
from pathlib import Path

_SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup"


def install(name: str, setup: Path = _SETUP) -> str:
    """The command that installs the extra `name`: of the checkout that this file lies in, whose environment may have
    no pip, or else of the installed package."""
    if setup.is_file():
        return f"{shlex.quote(str(setup))} {name}"
    return f"pip install 'sia-orchestrator[{name}]'"
