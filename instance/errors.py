"""What can stop an iteration or the agent."""

from __future__ import annotations


class AgentError(Exception):
    """Base of all errors of this package; each carries a message for a reader."""


class StartError(AgentError):
    """The agent can't begin: a file of its own, or a setting, is missing or unusable."""


class EngineError(AgentError):
    """The engine answered with a typed error. `code` is `budget`, `too_long`, `engine` or `bad_request`."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(f"{code}: {message}")


class EngineLost(AgentError):
    """The line to the engine is closed or out of step; only `restart` can help."""


class Cancelled(AgentError):
    """A signal asked the agent to end, and the answer did not come in the time that was left."""


class Unusable(AgentError):
    """A valid answer that can't be carried out, in words for the model."""


class StateDamaged(AgentError):
    """A state file that can't be read: cut off, changed, or written by a newer version."""
