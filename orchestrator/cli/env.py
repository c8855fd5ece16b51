"""`sia env build`."""

from __future__ import annotations

import json
import sys

from orchestrator import candidates
from orchestrator.cli.options import Json
from orchestrator.config import load_settings
from orchestrator.environments import agent_environment, verifier_environment
from orchestrator.home import open_home
from orchestrator.repository import Repository


def build(candidate: str | None = None, /, *, as_json: Json = False) -> int:
    """Build the Python environment of a candidate, or of the current generation and the verifier.

    This is the operator's consent to what the candidate's requirements file lists: wheels with hashes are downloaded
    and unpacked, nothing of them runs outside a sandbox. Where packages come from is taken from PIP_* and UV_*
    variables and pip's configuration; SIA_PYTHON names another base interpreter.

    Parameters
    ----------
    candidate
        Branch, commit or proposal. Without it: what `main` and verifiers need.
    """
    home = open_home()
    settings = load_settings(home.checkout)
    repository = Repository(home).ensure()
    commit = generation = repository.head()
    if candidate:
        commit = candidates.prepare(repository, settings, candidate, generation).judged
    requirements = repository.file(commit, settings.agent.requirements) or b""
    if not as_json:
        print(f"environment of {candidate or 'the current generation'} ({commit[:12]})…", file=sys.stderr)
    built = {candidate or "main": agent_environment(home, requirements, build=True)}
    if not candidate:
        built["verifier"] = verifier_environment(home)
    if as_json:
        print(
            json.dumps({"commit": commit, "environments": {name: str(path) for name, path in built.items()}}, indent=2)
        )
    else:
        for name, path in built.items():
            print(f"{name}\t{path}")
    return 0
