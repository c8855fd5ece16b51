"""`python -m orchestrator.engines.scripted [--check] POLICY.toml`."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.engines.scripted.model import ScriptedModel
from orchestrator.engines.scripted.policy import load
from orchestrator.engines.serve import serve
from orchestrator.errors import SiaError


def main(arguments: list[str]) -> int:
    """Serve a policy on fd 0, or only check it. Exit codes: 0, 2 usage, 78 a faulty policy."""
    check = arguments[:1] == ["--check"]
    names = arguments[1:] if check else arguments
    if len(names) != 1 or names[0].startswith("-"):
        print("usage: python -m orchestrator.engines.scripted [--check] POLICY.toml", file=sys.stderr)
        return 2
    try:
        policy = load(Path(names[0]))
    except SiaError as error:
        print(f"scripted engine: {error.render()}", file=sys.stderr)
        return error.exit_code
    if check:
        print(f"{names[0]}: {len(policy.rules)} rules")
        return 0
    try:
        serve(ScriptedModel(policy))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
