"""The agent's history as it sees it (agent paths only), and commits that come back from inside as bundles."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from orchestrator import durable, scratch
from orchestrator.agent_paths import agent_tree, entries, files, graft
from orchestrator.database import connect, transaction
from orchestrator.errors import Refused
from orchestrator.gitio import MEMORY, Git, GitError, Objects
from orchestrator.gitobjects import (
    EMPTY_TREE,
    BundleHeader,
    Object,
    encode_bundle_header,
    encode_commit,
    parse_bundle,
)
from orchestrator.home import Home
from orchestrator.repository import Repository

COMMITS = 50
MAX_BUNDLE = 16 << 20  # bytes
MAX_WHY = 4000  # characters kept
MAX_WALK = 2000  # commits of a proposal that are searched for the clone's base
CHECK_SECONDS = 60.0
PATIENCE = 120.0  # seconds that a proposal waits for others that are being checked


def bundle(repo: Repository, commit: str, paths: Sequence[str]) -> Path:
    """A git bundle (HEAD and branch `main`) of the last 50 first-parent commits of `commit`, agent paths only.

    Each of its commits is remembered with the full commit that it stands for, so that a proposal based on it is
    recognised later. Made once per commit.
    """
    key = hashlib.sha256("\0".join(sorted(paths)).encode()).hexdigest()[:8]
    target = repo.home.cache / "bundles" / f"{commit}-{key}.bundle"
    if target.exists():
        return target
    history = repo.git.line("rev-list", "--first-parent", f"--max-count={COMMITS}", commit).split()
    with repo.git.objects() as objects:
        stands_for, new = _synthesise(objects, reversed(history), paths)
        missing = [item for oid, item in new.items() if objects.info(oid) is None]
    if missing:
        repo.store(missing)
    with closing(connect(repo.home.database)) as database, transaction(database):
        database.executemany("INSERT OR IGNORE INTO clone_base VALUES (?, ?)", stands_for.items())
    tip = next(reversed(stands_for))
    pack = repo.git.run("pack-objects", "--revs", "--stdout", "--quiet", data=f"{tip}\n".encode())
    with scratch.writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        durable.write(target, encode_bundle_header(tip) + pack)
    return target


def _synthesise(
    objects: Objects, history: Iterable[str], paths: Sequence[str]
) -> tuple[dict[str, str], dict[str, Object]]:
    """Commits of the agent paths alone, oldest first: synthetic → full, and the objects that they need.

    Names of people stay out; a commit that changes nothing in the agent paths is left out, save that there is always
    at least one.
    """
    stands_for: dict[str, str] = {}
    new: dict[str, Object] = {}
    previous: Object | None = None
    last_tree = EMPTY_TREE
    full = list(history)
    for oid in full:
        commit = objects.commit(oid)
        tree = agent_tree(objects, commit.tree, paths)
        if tree.oid == last_tree and (previous or oid != full[-1]):
            continue
        last_tree = tree.oid
        previous = encode_commit(tree.oid, [previous.oid] if previous else [], commit.time, commit.message)
        stands_for[previous.oid] = oid
        new.update({item.oid: item for item in (*tree.new, previous)})
    return stands_for, new


_one_at_a_time = threading.Lock()  # checking one may take half a gigabyte, and every instance could ask for it


def accept_proposal(
    home: Home, branch: str, why: str, bundle: bytes, origin: str, paths: Sequence[str] | None = None
) -> str:
    """Check a bundle made inside a sandbox and store it as one commit; returns the candidate's name, `proposal/N`.

    `origin` is the trial's id or `main`; `paths` default to the `[agent] paths` of sia.toml. The same proposal again
    gives the same name. Raises Refused with a text for the model: not a bundle, over 16 MB, broken or forbidden
    objects, unknown base, nothing changed.
    """
    where = "proposal"
    if paths is None:
        from orchestrator.config import load_settings

        paths = load_settings(home.checkout).agent.paths
    if (
        not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}", branch)
        or ".." in branch
        or branch.endswith((".lock", "/"))
    ):
        raise Refused("the branch has no valid name", where=where, fix="use letters, digits, `-`, `_`, `.` and `/`")
    header = _header(bundle, where)
    tip = _tip(header, branch, where)
    repo = Repository(home).ensure()
    with _turn(where), repo.quarantine() as inside, closing(connect(home.database)) as database:
        known = database.execute("SELECT id FROM proposal WHERE tip = ?", (tip,)).fetchone()
        if known:
            return f"proposal/{known['id']}"
        inside.memory = MEMORY
        _unpack(inside, bundle[header.pack :], where)
        if inside.commit_of(tip) != tip:
            raise Refused("the bundle does not hold the branch's commit", where=where, fix=_REMAKE)
        base = _base(inside, database, tip, where)
        with inside.objects() as objects:
            commit, left_out = _full_commit(inside, objects, tip, base, paths, branch, _clean(why), where)
        row = (commit.oid, base, tip, branch, _clean(why), origin, int(left_out))
        return f"proposal/{_store(repo, inside, database, row)}"


@contextmanager
def _turn(where: str) -> Iterator[None]:
    if not _one_at_a_time.acquire(timeout=PATIENCE):
        raise Refused("other proposals are being checked", where=where, fix="propose it again in a few minutes")
    try:
        yield
    finally:
        _one_at_a_time.release()


_REMAKE = "commit your change in the clone, then make the bundle with `git bundle create FILE main..BRANCH`"


def _header(content: bytes, where: str) -> BundleHeader:
    if len(content) > MAX_BUNDLE:
        what = f"the bundle has {len(content)} bytes, more than {MAX_BUNDLE}"
        raise Refused(what, where=where, fix="keep generated files and data out of the commits")
    try:
        return parse_bundle(content)
    except ValueError as error:
        raise Refused(f"the file is not a usable git bundle: {error}", where=where, fix=_REMAKE) from None


def _tip(header: BundleHeader, branch: str, where: str) -> str:
    tips = set(header.references.values())
    tip = header.references.get(f"refs/heads/{branch}") or (next(iter(tips)) if len(tips) == 1 else None)
    if tip is None:
        raise Refused(f"the bundle holds no branch {branch!r}", where=where, fix=_REMAKE)
    return tip


def _unpack(inside: Git, pack: bytes, where: str) -> None:
    """Every object is checked as `git fsck` does, and that what it refers to exists."""
    arguments = ("index-pack", "--stdin", "--fix-thin", "--strict", f"--max-input-size={MAX_BUNDLE}")
    try:
        inside.run(*arguments, data=pack, seconds=CHECK_SECONDS)
    except GitError as error:
        reason = " · ".join(error.stderr.strip().splitlines()[-2:])[:300]
        raise Refused(f"git refuses the bundle's objects: {reason}", where=where, fix=_REMAKE) from None


_STANDS_FOR = """
SELECT full_commit FROM clone_base WHERE synthetic = :oid
UNION ALL SELECT commit_id FROM proposal WHERE tip = :oid LIMIT 1
"""


def _base(inside: Git, database: sqlite3.Connection, tip: str, where: str) -> str:
    """The full commit that the nearest known commit of the proposal's history stands for.

    That is a commit of the clone as it was made, or the tip of an earlier proposal which this one goes on from.
    """
    for order in ("--first-parent", "--topo-order"):
        for oid in inside.line("rev-list", order, f"--max-count={MAX_WALK}", tip).split():
            row = database.execute(_STANDS_FOR, {"oid": oid}).fetchone()
            if row:
                return str(row[0])
    fix = "make a fresh clone with tools/clone, and put your change on a branch of it"
    raise Refused("the branch is not based on a clone of the agent's history", where=where, fix=fix)


def _full_commit(
    quarantine: Git, objects: Objects, tip: str, base: str, paths: Sequence[str], branch: str, why: str, where: str
) -> tuple[Object, bool]:
    """The proposal as one commit on `base`, and whether something outside the agent paths was dropped."""
    inside, outside = objects.commit(tip), objects.commit(base)
    agent = agent_tree(objects, inside.tree, paths)
    files(objects, agent, where)
    if agent.oid == agent_tree(objects, outside.tree, paths).oid:
        raise Refused(f"the branch changes nothing in {', '.join(paths)}", where=where, fix=_REMAKE)
    whole = graft(objects, outside.tree, entries(objects, inside.tree, paths))
    sane = 0 < inside.seconds < time.time() + 86400
    message = f"{branch}\n\n{why}\n\nSia-Proposal: {tip}\n"
    commit = encode_commit(whole.oid, [base], inside.time if sane else outside.time, message)
    quarantine.write([*whole.new, commit])
    return commit, agent.oid != inside.tree


def _store(repo: Repository, quarantine: Git, database: sqlite3.Connection, row: tuple[str | int, ...]) -> int:
    """The proposal's number. Its ref exists before the row does, so a row never names a missing commit."""
    commit, base = str(row[0]), str(row[1])
    with transaction(database):
        known = database.execute("SELECT id FROM proposal WHERE commit_id = ?", (commit,)).fetchone()
        if known:
            return int(known["id"])
        number = int(database.execute("SELECT COALESCE(MAX(id), 0) + 1 FROM proposal").fetchone()[0])
        repo.keep(quarantine, commit, [base], f"refs/sia/proposals/{number}")
        values = (number, *row, time.time())
        database.execute(f"INSERT INTO proposal VALUES ({', '.join('?' * len(values))})", values)
    return number


def _clean(text: str) -> str:
    """Text of a model without what could end a commit message or forge a trailer's line."""
    kept = "".join(character for character in text if character.isprintable() or character == "\n")
    return re.sub(r"(?mi)^(sia-[a-z-]+):", r"\1 -", kept)[:MAX_WHY].strip() or "(no reason given)"
