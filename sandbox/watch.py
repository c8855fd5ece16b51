"""The watchdogs: bounds that no kernel interface enforces for a whole tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.process import Sandbox


def add(sandbox: Sandbox) -> None:
    """Watch a sandbox until it ends."""


def last_look(sandbox: Sandbox) -> str | None:
    """What a sandbox that has just ended passed without being seen: the limit's name."""
    return None
