"""Python environments of agents and of the verifier: built once per set of requirements, shared, read-only."""

from __future__ import annotations

from pathlib import Path

from orchestrator.home import Home


def agent_environment(home: Home, requirements: bytes, *, build: bool) -> Path:
    """The virtual environment `.sia/envs/<hash>` for a requirements file.

    Raises Refused for a file that is not `name==version` lines with hashes, and when the environment does not exist
    and `build` is false («needs environment»); Failed when building it fails.
    """
    raise NotImplementedError


def verifier_environment(home: Home) -> Path:
    """python3 and pinned pytest for verifiers; built at the first call. Raises Failed."""
    raise NotImplementedError


def base_python(environment: Path) -> Path:
    """The interpreter that an environment's `bin/python` leads to (at its own path on the host)."""
    raise NotImplementedError
