"""Errors that reach a person. Each says what happened, where, and what to do; none shows a traceback."""

from __future__ import annotations


class SiaError(Exception):
    """A failure with an explanation. `exit_code` is what the `sia` command ends with."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(self.render())

    def render(self) -> str:
        """One to three lines: `where: what`, then the fix."""
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  fix: {self.fix}" if self.fix else head


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
