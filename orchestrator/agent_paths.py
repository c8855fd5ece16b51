"""The agent paths inside git trees: taking them out, putting them in, and what they may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import Refused
from orchestrator.gitio import Objects
from orchestrator.gitobjects import (
    DIRECTORY,
    EMPTY_TREE,
    EXECUTABLE,
    FILE,
    SUBMODULE,
    SYMLINK,
    Entry,
    Object,
    encode_tree,
    parse_tree,
)

MAX_FILES = 20_000
MAX_BYTES = 256 << 20
MAX_DEPTH = 60
MAX_LINKS = 40  # as the kernel: more symlinks on one way are ELOOP


@dataclass(frozen=True)
class TreeFile:
    """A file or symlink below the agent paths. `path` has surrogate escapes for bytes that are not UTF-8."""

    path: str
    mode: int
    oid: str
    size: int


@dataclass(frozen=True)
class Grafted:
    """A tree that was computed. `new` are the tree objects that have to exist for it."""

    oid: str
    new: tuple[Object, ...]


def outermost(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths without those that lie in another one of them, sorted."""
    return tuple(sorted({p for p in paths if not any(p != q and p.startswith(f"{q}/") for q in paths)}))


def covers(paths: Sequence[str], path: str) -> bool:
    """Whether `path` is or lies below one of the agent paths."""
    return any(path == agent or path.startswith(f"{agent}/") for agent in paths)


def entries(objects: Objects, tree: str, paths: Sequence[str]) -> dict[str, Entry | None]:
    """For each agent path what a full tree has there; None where it has nothing."""
    return {path: _look_up(objects, tree, path.split("/")) for path in outermost(paths)}


def _look_up(objects: Objects, tree: str, parts: Sequence[str]) -> Entry | None:
    for position, part in enumerate(parts):
        entry = next((item for item in objects.tree(tree) if item.name == part), None)
        if entry is None or position == len(parts) - 1:
            return entry
        if entry.mode != DIRECTORY:
            return None
        tree = entry.oid
    return None


def agent_tree(objects: Objects, tree: str, paths: Sequence[str]) -> Grafted:
    """The tree that holds the agent paths of a full tree, and nothing else."""
    return graft(objects, EMPTY_TREE, entries(objects, tree, paths))


def graft(objects: Objects, tree: str, edits: Mapping[str, Entry | None]) -> Grafted:
    """`tree` with each path replaced by the given entry, or removed (None)."""
    return _graft(objects, tree, {tuple(path.split("/")): entry for path, entry in edits.items()})


def _graft(objects: Objects, tree: str, edits: Mapping[tuple[str, ...], Entry | None]) -> Grafted:
    items = {entry.name: entry for entry in objects.tree(tree)}
    new: list[Object] = []
    below: dict[str, dict[tuple[str, ...], Entry | None]] = {}
    for parts, entry in edits.items():
        if len(parts) > 1:
            below.setdefault(parts[0], {})[parts[1:]] = entry
        elif entry is None:
            items.pop(parts[0], None)
        else:
            items[parts[0]] = Entry(entry.mode, parts[0], entry.oid)
    for name, inner in below.items():
        old = items.get(name)
        if (old is None or old.mode != DIRECTORY) and not any(inner.values()):
            continue  # nothing to remove there
        grafted = _graft(objects, old.oid if old and old.mode == DIRECTORY else EMPTY_TREE, inner)
        new += grafted.new
        items.pop(name, None)
        if grafted.oid != EMPTY_TREE:
            items[name] = Entry(DIRECTORY, name, grafted.oid)
    made = encode_tree(items.values())
    return Grafted(made.oid, (*new, made))


def files(objects: Objects, tree: Grafted, where: str) -> list[TreeFile]:
    """All files of an agent tree, checked. Its new tree objects need not be stored.

    Raises Refused for what must not get into an export: submodules, symlinks that leave the tree, names that a file
    system or git gives a meaning, compiled Python (it would run instead of the source that people read), and trees
    that are too large or too deep (a few kilobytes of git objects can unfold to millions of files).
    """
    found: list[TreeFile] = []
    total = 0
    pending = [("", tree.oid, 0)]
    unstored = {item.oid: parse_tree(item.content) for item in tree.new}
    while pending:
        prefix, oid, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise _refused(f"directories nested deeper than {MAX_DEPTH}", where, "flatten them")
        names = set()
        for entry in unstored[oid] if oid in unstored else objects.tree(oid):
            path = f"{prefix}{entry.name}"
            _check_entry(entry, path, where)
            if entry.name in names:
                raise _refused(f"the tree holds {path!r} twice", where, "make the commit with ordinary git")
            names.add(entry.name)
            if entry.mode == DIRECTORY:
                pending.append((f"{path}/", entry.oid, depth + 1))
                size = 0
            else:
                info = objects.info(entry.oid)
                if not info or info[1] != "blob":
                    raise _refused(f"{path!r} is missing from the repository", where, "fetch its objects first")
                size = info[2]
                found.append(TreeFile(path, entry.mode, entry.oid, size))
            total += size
            if len(found) + len(pending) > MAX_FILES or total > MAX_BYTES:
                limit = f"{MAX_FILES} files or {MAX_BYTES >> 20} MB"
                raise _refused(f"the agent paths hold more than {limit}", where, "keep data out of the agent paths")
    _check_links(objects, found, where)
    return sorted(found, key=lambda file: file.path)


def _check_entry(entry: Entry, path: str, where: str) -> None:
    if entry.mode == SUBMODULE:
        raise _refused(f"{path!r} is a submodule", where, "commit its files instead; submodules are not exported")
    if entry.mode not in (DIRECTORY, FILE, EXECUTABLE, SYMLINK):
        raise _refused(f"{path!r} has the mode {entry.mode:o}", where, "make it an ordinary file")
    name = entry.name.lower()
    if name in ("", ".", "..") or "/" in name or len(entry.name.encode("utf-8", "surrogateescape")) > 255:
        raise _refused(f"{path[:100]!r} is no file name", where, "rename it")
    if name in (".git", "git~1") or name.startswith(".git\\"):
        raise _refused(f"{path!r} would be taken for a git repository", where, "remove it")
    if name == "__pycache__":
        fix = f"git rm -r --cached -- '{path}', and add it to .gitignore"
        raise _refused(f"{path!r} is compiled Python, which would run instead of its source", where, fix)


def _check_links(objects: Objects, found: Sequence[TreeFile], where: str) -> None:
    targets = {}
    for file in found:
        if file.mode == SYMLINK:
            if not 0 < file.size < 4096:
                raise _refused(f"{file.path!r} is a symlink of {file.size} bytes", where, "make it an ordinary file")
            targets[file.path] = objects.read(file.oid, "blob").decode("utf-8", "surrogateescape")
    for path, target in targets.items():
        if _leaves(path, targets):
            fix = "link to a file inside the agent paths, or commit the file itself"
            raise _refused(f"{path!r} is a symlink out of the tree (to {target!r})", where, fix)


def _leaves(path: str, targets: Mapping[str, str]) -> bool:
    """Whether following a symlink as the kernel does leads out of the tree (or round in circles) at any step."""
    steps = 0
    at: list[str] = []
    todo = path.split("/")[::-1]
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not at:
                return True
            at.pop()
            continue
        at.append(part)
        target = targets.get("/".join(at))
        if target is not None:
            steps += 1
            if steps > MAX_LINKS or target.startswith("/") or "\0" in target:
                return True
            at.pop()
            todo += target.split("/")[::-1]
    return False


def _refused(what: str, where: str, fix: str) -> Refused:
    return Refused(what, where=where, fix=fix)
