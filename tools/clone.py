#!/usr/bin/env python3
"""Clone the agent's own history, or bring an existing clone up to date.

usage: clone [DIRECTORY]        (default: /root/data/sia)

The clone holds the agent's code as it runs now, on branch main. An existing clone keeps its branches and changes: its
origin/main is moved to what runs now.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

BUNDLE = "/run/sia/agent.bundle"
CLONE = "/root/data/sia"


def git(*arguments: str, directory: Path | None = None) -> str:
    """Output of a git command; RuntimeError with git's message if it fails."""
    where = ["-C", str(directory)] if directory else []
    done = subprocess.run(["git", *where, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def clone(bundle: str, directory: Path) -> str:
    """Make or refresh the clone; what to tell the agent."""
    if not Path(bundle).exists():
        raise RuntimeError(f"{bundle} is not there: this agent was started without its history")
    if (directory / ".git").exists():
        git("remote", "set-url", "origin", bundle, directory=directory)
        git("fetch", "--quiet", "origin", directory=directory)
        head = git("log", "-1", "--format=%h %s", "origin/main", directory=directory)
        return (
            f"{directory} is up to date: origin/main is {head}\nNew work: git -C {directory} switch -c NAME origin/main"
        )
    git("clone", "--quiet", bundle, str(directory))
    git("config", "user.name", "SIA agent", directory=directory)
    git("config", "user.email", "agent@localhost", directory=directory)
    head = git("log", "-1", "--format=%h %s", directory=directory)
    return f"Cloned into {directory}, main is {head}\nNext: git -C {directory} switch -c NAME"


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, 1 failed, 2 wrong usage."""
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(__doc__, file=sys.stderr)
        return 0 if arguments[0] in ("-h", "--help") else 2
    try:
        print(clone(os.environ.get("SIA_AGENT_BUNDLE", BUNDLE), Path(arguments[0] if arguments else CLONE)))
    except (RuntimeError, OSError) as error:
        print(f"clone: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
