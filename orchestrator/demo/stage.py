"""The demo's repository: made anew from the checkout's HEAD commit, which is only read, and the example patches."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator import locks
from orchestrator.checkout import Checkout
from orchestrator.errors import ConfigError
from orchestrator.gitio import Git, GitError, quoted
from orchestrator.home import Home

CANDIDATES = ("better", "worse", "cheater", "brittle")
BASELINE = "baseline"
_PATCHES = "examples/candidates"
_NAME = re.compile(r"demo-\d{8}-\d{6}(-\d+)?")
_IDENTITY = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "sia demo"), ("EMAIL", "demo@sia.invalid"))
}


@dataclass(frozen=True)
class Stage:
    """A prepared repository. `repo` is a checkout of its branch `main`, the weakened agent."""

    folder: Path
    repo: Path

    @property
    def state(self) -> Path:
        """The state directory of the demo's repository."""
        return self.repo / ".sia"


@contextmanager
def build(home: Home) -> Iterator[Stage]:
    """A new `demo-…` folder in the state directory, locked while the block runs. Folders of earlier demos are removed.

    Raises ConfigError if the checkout has no examples.
    """
    prune(home)
    folder = _new_folder(home.root)
    fix = "wait until it ends"
    with locks.hold(folder / "lock", "this demo is already running", fix):
        stage = Stage(folder, folder / "repo")
        _fill(stage, Checkout(home.checkout))
        _share_environments(stage, home)
        yield stage


def prune(home: Home) -> None:
    """Remove the folders of demos that have ended."""
    for folder in home.root.glob("demo-*"):
        if _NAME.fullmatch(folder.name) and locks.holder(folder / "lock") is None:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Overlays leave directories of mode 000 behind (`work/work`), which only their owner or root can change."""
    for directory, names, _ in os.walk(folder, topdown=True):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink() and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                try:
                    path.chmod(0o700)
                except OSError:
                    pass
    shutil.rmtree(folder, ignore_errors=True)


def _new_folder(root: Path) -> Path:
    name = time.strftime("demo-%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(1, 100))):
        try:
            (root / f"{name}{suffix}").mkdir()
        except FileExistsError:
            continue
        return root / f"{name}{suffix}"
    raise ConfigError("too many demos were started at once", where=str(root), fix="wait a moment and try again")


def _fill(stage: Stage, checkout: Checkout) -> None:
    """Make the repository: `main` = the checkout's files with the baseline patch, and one branch per candidate."""
    head = checkout.head()
    directory = stage.repo / ".git"
    stage.repo.mkdir()
    git = Git(directory, {"GIT_WORK_TREE": str(stage.repo), **_IDENTITY}, durable=False)
    git.run("init", "--quiet", "--initial-branch=main", "--object-format=sha1", "--template=")
    source = Git(directory, {"GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(checkout.objects())}, durable=False)
    tree = source.line("rev-parse", f"{head}^{{tree}}")
    git.receive(source, [tree], ours=False)
    start = git.line("commit-tree", tree, "-m", f"The agent as of commit {head[:12]}")
    baseline = _patched(git, start, BASELINE, checkout)
    git.run("update-ref", "refs/heads/main", baseline)
    for name in CANDIDATES:
        git.run("update-ref", f"refs/heads/{name}", _patched(git, baseline, name, checkout))
    git.run("read-tree", "--reset", "-u", baseline)


def _patched(git: Git, base: str, name: str, checkout: Checkout) -> str:
    """The commit that `examples/candidates/NAME.patch` makes of `base`."""
    place = f"{_PATCHES}/{name}.patch"
    with git.objects() as objects:
        if objects.info(f"{base}:{place}") is None:
            fix = "run it in a checkout of SIA that has its examples committed"
            raise ConfigError(f"HEAD has no {place}", where=str(checkout.top), fix=fix)
        patch = objects.read(f"{base}:{place}", "blob")
    git.run("read-tree", base)
    try:
        git.run("apply", "--cached", "-", data=patch)
    except GitError as error:
        fix = "adapt the patch to the agent as it is now"
        raise ConfigError(f"the example patch does not apply: {error.what}", where=place, fix=fix) from None
    message = patch.decode("utf-8", "replace").partition("\ndiff --git ")[0].strip()
    return git.line("commit-tree", git.line("write-tree"), "-p", base, "-m", message)


def _share_environments(stage: Stage, home: Home) -> None:
    """Python environments are built once, for the checkout and for all its demos."""
    home.environments.mkdir(exist_ok=True)
    stage.state.mkdir()
    (stage.state / home.environments.name).symlink_to(home.environments)
