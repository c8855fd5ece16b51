"""Random operations over stacks of layers: the diff of each upper, and every copy, against plain copies.

The oracle does what succeeded inside on an ordinary directory, and compares two snapshots of that. Hard links of a
frozen layer are files of their own from then on, since an overlay breaks them at the first write.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.diff import diff
from sandbox.host import Host
from sandbox.layers import flatten, freeze, materialise, read_layered
from sandbox.spec import Overlay
from sandbox.stack import stored

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]

SCRIPT = Path(__file__).with_name("overlay_operations.py")
PLAY = "import sys; sys.argv = {words!r}; exec(compile(open('/operations.py').read(), 'operations', 'exec'))"
MODES = ["root", "user"] if os.geteuid() == 0 else ["user"]
SEEDS = range(6)
CASES = [(MODES[seed % len(MODES)], seed) for seed in SEEDS]  # where there are two modes, each has its own seeds
LAYERS = 4
OPERATIONS = 560  # per layer
CHANGES = 5000  # over all seeds


@dataclass(frozen=True)
class Node:
    """All that matters of a file."""

    kind: int
    mode: int
    content: bytes  # or a symlink's target
    attributes: tuple[tuple[str, bytes], ...]


Snapshot = dict[str, Node]


def snapshot(top: Path) -> Snapshot:
    """Everything below a directory that nobody else uses."""
    found: Snapshot = {}
    _look(top, "", found)
    return found


def _look(directory: Path, prefix: str, found: Snapshot) -> None:
    mode = stat.S_IMODE(directory.lstat().st_mode)
    directory.chmod(0o700)
    for name in os.listdir(directory):  # noqa: PTH208
        node = found[prefix + name] = _node(directory / name)
        if node.kind == stat.S_IFDIR:
            _look(directory / name, f"{prefix}{name}/", found)
    directory.chmod(mode)


def _node(path: Path) -> Node:
    status = path.lstat()
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        return Node(stat.S_IFLNK, 0, os.fsencode(path.readlink()), ())
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return Node(stat.S_IFMT(mode), stat.S_IMODE(mode), b"", ())
    path.chmod(0o700)
    names = sorted(name for name in os.listxattr(path) if name.startswith("user."))
    attributes = tuple((name, os.getxattr(path, name)) for name in names)
    content = path.read_bytes() if stat.S_ISREG(mode) else b""
    path.chmod(stat.S_IMODE(mode))
    return Node(stat.S_IFMT(mode), stat.S_IMODE(mode), content, attributes)


def restore(host: Host, nodes: Snapshot, top: Path) -> None:
    """A plain copy for the sandbox's user, each name a file of its own."""
    top.mkdir()
    for name, node in sorted(nodes.items()):
        path = top / name
        if node.kind == stat.S_IFDIR:
            path.mkdir()
        elif node.kind == stat.S_IFLNK:
            path.symlink_to(os.fsdecode(node.content))
        elif node.kind == stat.S_IFREG:
            path.write_bytes(node.content)
        else:
            os.mknod(path, node.kind | 0o600)
    host.own(top)  # clears setuid bits
    for name, node in sorted(nodes.items(), reverse=True):
        if node.kind != stat.S_IFLNK:
            for key, value in node.attributes:
                os.setxattr(top / name, key, value)
            (top / name).chmod(node.mode)


def without_overlay_attributes(nodes: Snapshot) -> Snapshot:
    """A lowest layer that was not written through an overlay: there such a name has its meaning."""
    return {
        name: Node(node.kind, node.mode, node.content, tuple(a for a in node.attributes if "overlay" not in a[0]))
        for name, node in nodes.items()
    }


def expected(before: Snapshot, after: Snapshot) -> dict[str, tuple[str, ...]]:
    """What a diff has to say."""
    found: dict[str, tuple[str, ...]] = {}
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        parents = [name[:end] for end, character in enumerate(name) if character == "/"]
        gone = [p for p in parents if p in before and (p not in after or after[p].kind != before[p].kind)]
        if new is None and gone:
            continue  # said by the parent's own line
        if old is None or new is None:
            found[name] = ("added",) if new else ("deleted",)
        elif old.kind != new.kind:
            found[name] = ("type",)
        else:
            compared = {"modified": "content", "mode": "mode", "xattr": "attributes"}
            kinds = tuple(kind for kind, of in compared.items() if getattr(old, of) != getattr(new, of))
            if kinds:
                found[name] = kinds
    return found


def run(words: list[str], directory: Path, given: bytes) -> None:
    """The replay, on a plain copy."""
    argv = [sys.executable, "-I", "-S", str(SCRIPT), *words]
    done = subprocess.run(argv, cwd=directory, input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def as_copied(nodes: Snapshot, *kinds: int) -> Snapshot:
    """What a copy keeps: no setuid and setgid bits, and of special files only `kinds`."""
    return {
        name: Node(
            node.kind, node.mode & 0o1777, node.content, tuple(sorted((stored(k), v) for k, v in node.attributes))
        )
        for name, node in nodes.items()
        if node.kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, *kinds)
    }


@pytest.fixture
def plain(host: Host, tmp_path: Path) -> Iterator[Callable[[Snapshot], Path]]:
    """`plain(snapshot)`: the next plain copy."""
    count = 0

    def make(nodes: Snapshot) -> Path:
        nonlocal count
        count += 1
        restore(host, nodes, tmp_path / f"plain{count}")
        return tmp_path / f"plain{count}"

    yield make


@pytest.mark.parametrize(("mode", "seed"), CASES, indirect=["mode"])
def test_every_layer_says_what_a_plain_copy_says(
    seed: int, inside: Callable, host: Host, overlay: Callable, plain: Callable[[Snapshot], Path], tmp_path: Path
) -> None:
    (tmp_path / "start").mkdir()
    host.own(tmp_path / "start")
    run(["play", str(seed), "300"], tmp_path / "start", b"")
    state = without_overlay_attributes(snapshot(tmp_path / "start"))
    base = tmp_path / "base"
    restore(host, state, base)
    lowers: tuple[Path, ...] = (base,)
    count = 0
    for number in range(LAYERS):
        app: Overlay = overlay("/app", lowers=lowers)
        script = PLAY.format(words=["", "play", str(seed * 100 + number), str(OPERATIONS)])
        operations = {"/operations.py": SCRIPT.read_bytes()}
        outcome, log = inside(script, python=True, workdir="/app", overlays=(app,), files=operations)
        assert outcome.exit_code == 0, log
        copy = plain(state)
        run(["replay"], copy, log.encode())
        after = snapshot(copy)
        found = {change.path: (change.kind, *change.also) for change in diff(lowers, app.upper)}
        wanted = expected(state, after)
        different = {name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)}
        assert not different, {name: (found.get(name), wanted.get(name)) for name in different}
        count += len(found)
        layer = tmp_path / f"layer{number}"
        freeze(host, app.upper, layer)
        lowers, state = (*lowers, layer), after
    assert count >= CHANGES / len(SEEDS)
    _check_copies(host, lowers, state, tmp_path)


def _check_copies(host: Host, lowers: tuple[Path, ...], state: Snapshot, tmp_path: Path) -> None:
    """One layer of all, a copy for people, and single files."""
    flatten(host, lowers, tmp_path / "flat")
    assert snapshot(tmp_path / "flat") == as_copied(state, stat.S_IFIFO)
    materialise(lowers, None, tmp_path / "copy")
    assert snapshot(tmp_path / "copy") == as_copied(state)
    for name, node in list(state.items())[:100]:
        if node.kind == stat.S_IFREG:
            assert read_layered(lowers, None, name, 1 << 20) == node.content
