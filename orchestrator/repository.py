"""The supervisor's own bare repository `.sia/repo.git`. Its branch `main` is what runs; the checkout is only read."""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator import agent_paths, durable, exports, scratch
from orchestrator.checkout import Checkout
from orchestrator.environments import interpreter
from orchestrator.errors import ConfigError, Failed, Refused
from orchestrator.gitio import Git, GitError, quoted
from orchestrator.gitobjects import Object
from orchestrator.home import Home

MAIN = "refs/heads/main"
PROPOSAL = re.compile(r"proposal/(\d{1,12})")


_SWEPT: set[Path] = set()


@dataclass(frozen=True)
class Export:
    """Agent paths of a commit on disk, read-only and complete. `tree` is the hash of what lies at `path`."""

    path: Path
    tree: str


class Repository:
    """Candidates are fetched into it, judged commits are made in it. Safe to use from several threads and processes."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.path = home.repository
        self.git = Git(self.path)
        self.checkout = Checkout(home.checkout)

    def ensure(self) -> Repository:
        """Create it from the checkout's HEAD commit (generation 1) unless it exists. Returns self.

        Raises ConfigError: no commit yet, sha256 repository, git older than 2.38.
        """
        if not (self.path / "HEAD").exists():
            with self._locked():
                if not (self.path / "HEAD").exists():
                    self._create()
        elif self.path not in _SWEPT:
            self._sweep()
        return self

    def _sweep(self) -> None:
        """Once per process: remove what killed writers left in the object store. Every writer holds the lock."""
        _SWEPT.add(self.path)
        with self._locked():
            for pattern in ("pack/tmp_*", "??/tmp_obj_*", "pack/.tmp-*", "tmp_objdir-*"):
                for debris in (self.path / "objects").glob(pattern):
                    shutil.rmtree(debris) if debris.is_dir() else debris.unlink(missing_ok=True)

    def _create(self) -> None:
        commit = self.checkout.head()
        with scratch.directory(self.home.root, ".repo-") as fresh:
            git = Git(fresh)
            git.run("init", "--bare", "--quiet", "--initial-branch=main", "--object-format=sha1", "--template=")
            self._copy(git, commit)
            git.run("update-ref", "--no-deref", MAIN, commit, "")
            durable.sync_directory(fresh / "refs" / "heads")
            durable.sync_directory(fresh)
            try:
                fresh.rename(self.path)
            except OSError:
                fix = "restore it from a backup, or move .sia away to start again from the checkout's HEAD"
                raise ConfigError("the supervisor's repository is damaged", where=str(self.path), fix=fix) from None
            durable.sync_directory(self.home.root)

    def head(self) -> str:
        """The commit of `main`. Raises ConfigError if the repository is missing or damaged."""
        found = self.git.commit_of(MAIN) if self.path.exists() else None
        if found is None:
            fix = "restore it from a backup, or move .sia away to start again from the checkout's HEAD"
            raise ConfigError(
                "the supervisor's repository has no readable branch `main`", where=str(self.path), fix=fix
            )
        return found

    def resolve(self, name: str) -> str | None:
        """The commit that a name of this repository (a commit id or a ref) stands for, or None."""
        return self.git.commit_of(name)

    def fetch_candidate(self, name: str) -> str:
        """Fetch a branch, commit or `proposal/N` and return its full commit id.

        Names are looked up in the user's repository, branches first; then as a commit id in our own. Raises Refused:
        doesn't exist, shares no history with `main`.
        """
        where = f"candidate {name!r}"
        if found := PROPOSAL.fullmatch(name):
            commit = self.git.commit_of(f"refs/sia/proposals/{found[1]}")
            if commit is None:
                raise Refused("there is no such proposal", where=where, fix="see `sia candidate list`")
            return commit
        commit = self.checkout.commit(name)
        if commit is None:
            own = self.git.commit_of(name) if re.fullmatch(r"[0-9a-f]{7,40}", name) else None
            if own is None:
                raise Refused("no such branch or commit", where=where, fix=self._suggestion(name))
            commit = own
        elif self.git.commit_of(f"refs/sia/candidates/{commit}") is None:
            self._fetch(commit, where)
        self._check_related(self.git, commit, where)
        return commit

    def _suggestion(self, name: str) -> str:
        branches = self.checkout.branches()
        near = difflib.get_close_matches(name, branches, 3) or branches[:8]
        known = ", ".join(near) if near else "none"
        return f"name a branch or commit of {self.home.checkout} (branches: {known})"

    def _fetch(self, commit: str, where: str) -> None:
        both = Git(self.path, {"GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(self.checkout.objects())})
        if not self.checkout.shallow():
            self._check_related(both, commit, where)  # before anything is copied
        with self._locked() as lock:
            try:
                self._copy(Git(self.path, hold=[lock]), commit)
            except GitError as error:
                fix = "fetch its objects into your repository first (a partial clone leaves some out)"
                fix = scratch.fix_of(error.stderr, fix)
                raise Refused(f"can't be fetched: {error.what}", where=where, fix=fix) from None
            self._write_ref(lock, f"refs/sia/candidates/{commit}", commit)

    def _check_related(self, git: Git, commit: str, where: str) -> None:
        main = self.head()
        if commit != main and git.result("merge-base", main, commit, ok=(0, 1)).returncode:
            fix = f"base it on generation {main[:12]} (branch `main` of {self.path}), for example by `git rebase`"
            raise Refused("shares no history with the current generation", where=where, fix=fix)

    def _copy(self, target: Git, commit: str) -> None:
        """Copy a commit with its history from the checkout's object store."""
        cut = self.checkout.shallow()
        if cut:
            file = target.directory / "shallow"
            known = file.read_text("ascii").split() if file.exists() else []
            with target.objects() as objects:
                wanted = [line for line in cut if line not in known and objects.info(line) is None]
            if wanted:
                durable.write(file, "".join(f"{line}\n" for line in [*known, *wanted]).encode())
        alternates = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(self.checkout.objects())}
        target.receive(Git(target.directory, alternates), [commit])

    def move_main(self, new: str, old: str) -> None:
        """Compare-and-swap of `main`, durable when it returns. Raises Failed if `main` is not at `old`."""
        with self._locked() as lock:
            current = self.head()
            if current != old:
                what = f"main is at {current[:12]}, not at {old[:12]}: it moved in between"
                raise Failed(what, where=str(self.path), fix="judge the candidate against the current generation")
            self._write_ref(lock, MAIN, new, old)

    def set_ref(self, ref: str, commit: str) -> None:
        """Point a ref below refs/sia/ (for example `refs/sia/bad/3`) at a commit, durably."""
        if not ref.startswith("refs/sia/"):
            raise ValueError(f"{ref!r} is not below refs/sia/")
        with self._locked() as lock:
            self._write_ref(lock, ref, commit)

    def _write_ref(self, lock: int, ref: str, new: str, *old: str) -> None:
        """Call with the lock held, which git inherits. So a ref's lock file that lies there belongs to a dead one."""
        for debris in [*(self.path / "refs").rglob("*.lock"), *self.path.glob("*.lock")]:
            debris.unlink(missing_ok=True)
        Git(self.path, hold=[lock]).run("update-ref", "--no-deref", ref, new, *old)
        durable.sync_directory((self.path / ref).parent)

    def file(self, commit: str, path: str) -> bytes | None:
        """Content of one file of a commit, or None if it has no such file."""
        with self.git.objects() as objects:
            found = objects.info(f"{commit}:{path}")
            return objects.read(found[0], "blob") if found and found[1] == "blob" else None

    def export(self, commit: str, paths: Sequence[str], root: Path) -> Export:
        """`root/<commit>` with the agent paths of that commit: made whole or not at all, verified on every call.

        What fails verification is moved aside and made again. Raises Refused for contents that may not be exported
        (`agent_paths.files`).
        """
        target = root / commit
        with self.git.objects() as objects:
            grafted = agent_paths.agent_tree(objects, f"{commit}^{{tree}}", paths)
            tree = grafted.oid
            if target.is_dir():
                if _hash_or_none(target) == tree:
                    return Export(target, tree)
                self._set_aside(target)
            files = agent_paths.files(objects, grafted, f"commit {commit[:12]}")
            exports.make(objects, files, tree, target, interpreter())
        if exports.tree_hash(target) != tree:
            raise Failed("the export does not have the commit's tree hash", where=str(target), fix="remove it")
        return Export(target, tree)

    def _set_aside(self, target: Path) -> None:
        aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=target.parent))
        try:
            target.rename(aside / target.name)
        except FileNotFoundError:
            pass  # another process did

    @contextmanager
    def quarantine(self) -> Iterator[Git]:
        """The repository with a scratch object store in front: what is written there is gone afterwards.

        Keep something by `self.keep`.
        """
        with scratch.directory(self.home.cache / "quarantine", "q-") as store:
            extra = {
                "GIT_OBJECT_DIRECTORY": str(store),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(self.path / "objects"),
            }
            yield Git(self.path, extra, durable=False)

    def store(self, objects: Iterable[Object]) -> None:
        """Write objects durably."""
        with self._locked() as lock:
            Git(self.path, hold=[lock]).write(objects)

    def keep(self, quarantine: Git, commit: str, parents: Sequence[str], ref: str) -> None:
        """Store a commit from a quarantine durably, under a ref below refs/sia/."""
        with self._locked() as lock:
            Git(self.path, hold=[lock]).receive(quarantine, [commit], parents, ours=False)
            self._write_ref(lock, ref, commit)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """One writer at a time, over threads and processes. The descriptor holds the lock."""
        with scratch.writing(self.path):
            descriptor = os.open(self.home.root / ".repository.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield descriptor
            finally:
                os.close(descriptor)


def _hash_or_none(path: Path) -> str | None:
    try:
        return exports.tree_hash(path)
    except (Failed, OSError):
        return None
