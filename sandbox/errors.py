"""Errors of this room. `SiaError` lies here, in the lowest room, so that everything above shares it."""

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


class CannotIsolate(SiaError):
    """This machine, or this specification, gives less protection than promised, so nothing was started (78)."""

    exit_code = 78


class SandboxFailed(SiaError):
    """A sandbox could not be set up although the machine can isolate (full disk, path vanished…)."""


class UnsafePath(SiaError):
    """A path that an instance left leads out of its tree, or is not what may be read."""
