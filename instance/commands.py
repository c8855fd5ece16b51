"""Actions that change the agent at once and leave no entry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from instance.memory import WorkingMemory


class CommandResult(NamedTuple):
    """What a command did. A `message` of a failure is told to the model."""

    message: str
    success: bool
    should_stop: bool

    @staticmethod
    def succeeded() -> CommandResult:
        """It worked."""
        return CommandResult("", True, False)

    @staticmethod
    def failure(message: str) -> CommandResult:
        """It did not work, and why."""
        return CommandResult(message, False, False)

    @staticmethod
    def stop() -> CommandResult:
        """It worked, and the agent is to end."""
        return CommandResult("", True, True)


class Command(ABC):
    """Something to do now."""

    @abstractmethod
    def execute(self, memory: WorkingMemory) -> CommandResult:
        """Do it."""


class DeleteCommand(Command):
    """Take one entry out of the context."""

    def __init__(self, id: str) -> None:
        self.id = id

    def execute(self, memory: WorkingMemory) -> CommandResult:
        """Remove the entry; an unknown id is a failure that names the known ones."""
        if memory.remove_entry(self.id):
            return CommandResult.succeeded()
        known = ", ".join(entry.id for entry in memory.get_entries()[-50:]) or "none"
        return CommandResult.failure(f"There is no entry with id '{self.id}'. Ids in the context: {known}")


class StopCommand(Command):
    """End the agent."""

    def execute(self, memory: WorkingMemory) -> CommandResult:
        """Nothing to change."""
        return CommandResult.stop()
