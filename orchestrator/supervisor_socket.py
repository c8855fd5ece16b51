"""The server behind /run/sia/supervisor.sock: requests of the agent's tools, the same answers for every instance."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Services(Protocol):
    """What the requests ask for. Each returns text for a model to read; a SiaError becomes such a text."""

    def propose(self, origin: str, branch: str, why: str, bundle: bytes) -> str:
        """Store a proposal. `origin` names the instance that sent it."""

    def results(self, origin: str, campaign: str) -> str:
        """What a campaign found. Sealed tasks never appear."""

    def status(self, origin: str) -> str:
        """The current generation and what waits."""

    def trial(self, origin: str, branch: str, task: str) -> str:
        """A test instance of the agent's own branch, within its quota."""


class SupervisorServer:
    """One thread that serves the sockets of all instances of this process."""

    def __init__(self, directory: Path, services: Services) -> None:
        """`directory` (`home.run`) holds the sockets."""
        raise NotImplementedError

    def listen(self, origin: str) -> Path:
        """A new socket for one instance; connectable by the sandbox uid."""
        raise NotImplementedError

    def forget(self, path: Path) -> None:
        """Close and remove a socket made by `listen`, with its connections."""
        raise NotImplementedError

    def close(self) -> None:
        """End the thread and remove all sockets."""
        raise NotImplementedError
