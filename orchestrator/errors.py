"""Errors that reach a person. Each says what happened, where, and what to do; none shows a traceback."""

from __future__ import annotations

from sandbox.errors import SiaError

__all__ = ["ConfigError", "Failed", "Refused", "SiaError", "UsageError"]


class Failed(SiaError):
    """The work was tried and did not succeed (exit code 1)."""


class UsageError(SiaError):
    """The command line asks for something that does not exist or does not fit (exit code 2)."""

    exit_code = 2


class ConfigError(SiaError):
    """A file that a person wrote, or the state directory, can't be used as it is (exit code 78)."""

    exit_code = 78


class Refused(ConfigError):
    """Isolation or evidence would not hold, so nothing was started (exit code 78)."""
