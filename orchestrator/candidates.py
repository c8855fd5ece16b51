"""From a branch to the commit that is judged: merge first, agent paths only (docs/contract.md, *What is judged*)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import agent_history, uses
from orchestrator.agent_build import AgentBuild
from orchestrator.agent_paths import Grafted, agent_tree, covers, entries, files, graft
from orchestrator.environments import agent_environment
from orchestrator.errors import Refused
from orchestrator.gitio import Git, Objects
from orchestrator.gitobjects import Commit, encode_commit
from orchestrator.home import Home
from orchestrator.repository import Repository
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from orchestrator.config import Settings

SCHEMA = "action_schema.xsd"


@dataclass(frozen=True)
class Candidate:
    """A candidate merged with a generation. `judged` is J, the only commit that a verdict about it can promote."""

    name: str
    proposed: str
    judged: str
    tree: str
    """Hash of the tree that holds J's agent paths alone."""
    left_out: tuple[str, ...]
    """Paths outside the agent paths that the candidate changed and that do not come along, sorted."""


@dataclass(frozen=True)
class _Side:
    """One of the three commits of a merge."""

    oid: str
    commit: Commit
    agent: Grafted


def prepare(repo: Repository, settings: Settings, name: str, generation: str) -> Candidate:
    """Fetch `name`, merge its agent paths with `generation`, and return the judged commit.

    The same name, commits and paths always give the same J. Raises Refused with the reason: doesn't exist, no shared
    history, conflict, nothing changed in the agent paths, a submodule, a symlink that leaves the tree, too large.
    """
    where = f"candidate {name!r}"
    paths = settings.agent.paths
    proposed = repo.fetch_candidate(name)
    bases = repo.git.run("merge-base", "--all", generation, proposed, ok=(0, 1)).decode().split()
    if not bases:
        fix = f"base it on generation {generation[:12]}"
        raise Refused("shares no history with the generation it is judged against", where=where, fix=fix)
    with repo.quarantine() as scratch, scratch.objects() as objects:
        mine, theirs, common, *others = (_side(objects, oid, paths) for oid in (generation, proposed, *bases))
        files(objects, theirs.agent, where)  # refuses before anything walks it
        absorbed = _absorbed(repo, mine.oid, theirs.oid, common.oid)
        start = _side(objects, absorbed, paths) if absorbed else common
        if not absorbed and any(other.agent.oid != common.agent.oid for other in others):
            # which of them the change is counted from would decide what is judged
            what = f"has {len(bases)} merge bases with the generation, and their agent paths differ"
            fix = f"merge the current generation ({generation[:12]}) into it, so that there is one"
            raise Refused(what, where=where, fix=fix)
        merged = _merge_agent_paths(scratch, objects, mine, theirs, start, paths, where)
        whole = graft(objects, mine.commit.tree, entries(objects, merged, paths))
        scratch.write(whole.new)
        agent = agent_tree(objects, whole.oid, paths)
        if agent.oid != theirs.agent.oid:
            files(objects, agent, where)
        judged = _judged_commit(repo, scratch, mine, theirs, common, whole.oid, name)
    left_out = _left_out(repo, mine, theirs, common, paths)
    return Candidate(name, proposed, judged, agent.oid, left_out)


def _side(objects: Objects, oid: str, paths: Sequence[str]) -> _Side:
    commit = objects.commit(oid)
    return _Side(oid, commit, agent_tree(objects, commit.tree, paths))


def _absorbed(repo: Repository, generation: str, proposed: str, base: str) -> str | None:
    """The newest commit of the candidate's branch whose agent paths the generation has taken already, if any.

    Where other paths were left out, J has the generation as its only parent, so git's merge base lies before what was
    promoted: going on with that branch would conflict with its own, earlier change.
    """
    arguments = ("log", "--first-parent", "--format=%H %(trailers:key=Sia-Candidate,valueonly,separator=%x2C)")
    for line in repo.git.line(*arguments, f"{base}..{generation}").splitlines():
        made, _, commit = line.partition(" ")
        if re.fullmatch(r"[0-9a-f]{40}", commit) and repo.resolve(f"refs/sia/judged/{made}") == made:
            git = repo.git
            if git.commit_of(commit) and git.is_ancestor(commit, proposed) and git.is_ancestor(base, commit):
                return commit
    return None


def _merge_agent_paths(
    scratch: Git, objects: Objects, mine: _Side, theirs: _Side, common: _Side, paths: Sequence[str], where: str
) -> str:
    """A tree whose agent paths are the merge's: the candidate's own full tree where the generation changed nothing."""
    listed = ", ".join(paths)
    if theirs.agent.oid == common.agent.oid:
        what = f"changes nothing in the agent paths ({listed})"
        if theirs.oid == common.oid:  # git's merge base, or what was promoted of this very branch
            what = "is already part of the generation it would be judged against"
        raise Refused(what, where=where, fix="commit a change of the agent; other paths are merged by people")
    if mine.agent.oid == common.agent.oid:
        return theirs.commit.tree
    base = encode_commit(common.agent.oid, (), common.commit.time, "base")
    ours = encode_commit(mine.agent.oid, (base.oid,), mine.commit.time, "generation")
    other = encode_commit(theirs.agent.oid, (base.oid,), theirs.commit.time, "candidate")
    scratch.write([*common.agent.new, *mine.agent.new, *theirs.agent.new, base, ours, other])
    arguments = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", ours.oid, other.oid)
    result = scratch.result(*arguments, ok=(0, 1))
    tree, *conflicts = result.stdout.decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
    if result.returncode:
        named = one_line(", ".join(sorted({path for path in conflicts if path})[:10]), 1000)
        fix = f"rebase it on the current generation ({mine.oid[:12]}) and resolve them"
        raise Refused(f"conflicts with the current generation in {named}", where=where, fix=fix)
    if tree == mine.agent.oid:
        fix = "commit a change of the agent that the generation does not have yet"
        raise Refused("changes nothing in the agent paths that the generation does not have", where=where, fix=fix)
    return tree


def _judged_commit(
    repo: Repository, scratch: Git, mine: _Side, theirs: _Side, common: _Side, tree: str, name: str
) -> str:
    """J. Where an ordinary full merge gives the same tree, J is that merge; else a commit with one parent."""
    if common.oid == mine.oid and theirs.commit.tree == tree:
        return theirs.oid
    time = max(mine.commit, theirs.commit, key=lambda commit: commit.seconds).time
    parents, subject = [mine.oid], f"Candidate {name} on {mine.oid[:12]}, agent paths only"
    if common.oid != mine.oid:
        full = scratch.result("merge-tree", "--write-tree", "--no-messages", "-z", mine.oid, theirs.oid, ok=(0, 1))
        if full.returncode == 0 and full.stdout.decode("ascii", "replace").rstrip("\0\n") == tree:
            parents, subject = [mine.oid, theirs.oid], f"Merge candidate {name}"
    commit = encode_commit(tree, parents, time, f"{subject}\n\nSia-Candidate: {theirs.oid}\n")
    ref = f"refs/sia/judged/{commit.oid}"
    if repo.resolve(ref) != commit.oid:
        scratch.write([commit])
        repo.keep(scratch, commit.oid, [mine.oid, theirs.oid], ref)
    return commit.oid


def _left_out(repo: Repository, mine: _Side, theirs: _Side, common: _Side, paths: Sequence[str]) -> tuple[str, ...]:
    changed = _outside(repo, common.oid, theirs.oid, paths)
    if changed and common.oid != mine.oid:
        changed &= _outside(repo, mine.oid, theirs.oid, paths)  # the generation may have the same change
    return tuple(sorted(changed))


def _outside(repo: Repository, old: str, new: str, paths: Sequence[str]) -> set[str]:
    out = repo.git.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new)
    names = out.decode("utf-8", "surrogateescape").split("\0")
    return {name for name in names if name and not covers(paths, name)}


def commit_lock(home: Home, commit: str) -> Path:
    """The lock of everything that is made of a commit (see `orchestrator.uses`)."""
    return home.uses / commit


def build(home: Home, settings: Settings, commit: str) -> AgentBuild:
    """Export, environment and bundle of a judged commit or a generation; each exists already after the first call.

    The export goes to `home.generations`, for trials as for the main instance. Raises Refused when the environment is
    missing and `[agent] build_environments` is false. All of it is in use (`orchestrator.uses`) until this process
    ends.
    """
    repo = Repository(home).ensure()
    uses.use(commit_lock(home, commit))
    agent = settings.agent
    requirements = repo.file(commit, agent.requirements) or b""
    environment = agent_environment(home, requirements, build=agent.build_environments)
    export = repo.export(commit, agent.paths, home.generations)
    schema = next((path for path in agent.paths if path.split("/")[-1] == SCHEMA), SCHEMA)
    return AgentBuild(
        commit=commit,
        tree=export.tree,
        export=export.path,
        environment=environment,
        bundle=agent_history.bundle(repo, commit, agent.paths),
        command=agent.command,
        schema=repo.file(commit, schema) or b"",
    )
