"""A third each: the default branch, the commit of main, no stale lock. Nothing for a repository that git refuses."""

import subprocess
from pathlib import Path

NEWEST = "3c12b388410ace92ad60130929e6e20a2e726ea2"
KEPT = {"refs/heads/archive": "a491ac4a38eee68d68bb2749647b86b42b15da66", "refs/tags/v1": "a491ac4a38eee68d68bb2749647b86b42b15da66"}


def git(*arguments: str) -> str:
    """Git runs confined: the repository's configuration may name programs of whoever wrote it."""
    command = ["confine", "git", "--git-dir=harbour.git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout


def score() -> float:
    names = dict(line.split(" ", 1)[::-1] for line in git("for-each-ref", "--format=%(objectname) %(refname)").splitlines())
    if any(names.get(name) != commit for name, commit in KEPT.items()):
        return 0
    git("rev-list", "--objects", NEWEST)
    default = git("symbolic-ref", "HEAD").strip() == "refs/heads/main" and "refs/heads/main" in names
    unlocked = not any(Path("harbour.git").rglob("*.lock"))
    newest = names.get("refs/heads/main") == NEWEST
    return round((default + newest + (unlocked and default)) / 3, 3) if default or newest else 0


try:
    print(score())
except (subprocess.SubprocessError, OSError):
    print(0)
