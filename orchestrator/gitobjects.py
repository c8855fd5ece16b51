"""Git's object formats as values: trees, commits, packs. Pure functions; nothing here runs git."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["commit", "tree", "blob"]
DIRECTORY, FILE, EXECUTABLE, SYMLINK, SUBMODULE = 0o040000, 0o100644, 0o100755, 0o120000, 0o160000
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
IDENTITY = b"SIA <sia@localhost>"
_PACK_TYPES = {"commit": 1, "tree": 2, "blob": 3}


@dataclass(frozen=True)
class Entry:
    """One line of a tree. `name` is a file system name (bytes that are not UTF-8 are surrogate-escaped)."""

    mode: int
    name: str
    oid: str


@dataclass(frozen=True)
class Object:
    """An object to be written."""

    kind: Kind
    content: bytes

    @property
    def oid(self) -> str:
        """Its name."""
        return object_id(self.kind, self.content)


@dataclass(frozen=True)
class Commit:
    """What is used of a commit. `time` is the committer's, as git writes it («1700000000 +0100»)."""

    tree: str
    parents: tuple[str, ...]
    time: str
    message: str

    @property
    def seconds(self) -> int:
        """Committer time in Unix seconds; 0 where it is damaged."""
        first = self.time.split(" ")[0]
        return int(first) if first.isdigit() else 0


def object_id(kind: Kind, content: bytes) -> str:
    """Git's SHA-1 name of an object."""
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content, usedforsecurity=False).hexdigest()


def parse_tree(content: bytes) -> list[Entry]:
    """The entries of a raw tree object. Raises ValueError if it is damaged."""
    entries, position = [], 0
    while position < len(content):
        space = content.index(b" ", position)
        end = content.index(b"\0", space)
        oid = content[end + 1 : end + 21]
        if len(oid) != 20:
            raise ValueError("truncated tree")
        name = content[space + 1 : end].decode("utf-8", "surrogateescape")
        entries.append(Entry(int(content[position:space], 8), name, oid.hex()))
        position = end + 21
    return entries


def encode_tree(entries: Iterable[Entry]) -> Object:
    """A tree object; entries are put into git's order (directories sort as if their name ended in `/`)."""
    lines = []
    for entry in entries:
        name = entry.name.encode("utf-8", "surrogateescape")
        key = name + b"/" if entry.mode == DIRECTORY else name
        lines.append((key, b"%o %s\0" % (entry.mode, name) + bytes.fromhex(entry.oid)))
    return Object("tree", b"".join(line for _, line in sorted(lines)))


def parse_commit(content: bytes) -> Commit:
    """A raw commit object. Raises ValueError if it has no tree."""
    head, _, message = content.partition(b"\n\n")
    tree, parents, time = "", [], "0 +0000"
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == b"tree":
            tree = value.decode("ascii", "replace")
        elif key == b"parent":
            parents.append(value.decode("ascii", "replace"))
        elif key == b"committer" and (found := re.search(rb"> (\d{1,12} [+-]\d{4})$", value)):
            time = found[1].decode("ascii")
    if not tree:
        raise ValueError("a commit without a tree")
    return Commit(tree, tuple(parents), time, message.decode("utf-8", "replace"))


def encode_commit(tree: str, parents: Sequence[str], time: str, message: str) -> Object:
    """A commit by SIA itself: the same arguments always give the same commit."""
    lines = [f"tree {tree}".encode(), *(f"parent {parent}".encode() for parent in parents)]
    lines += [b"%s %s %s" % (role, IDENTITY, time.encode()) for role in (b"author", b"committer")]
    text = message.replace("\0", "").strip("\n") + "\n"
    return Object("commit", b"\n".join(lines) + b"\n\n" + text.encode("utf-8", "replace"))


def encode_pack(objects: Mapping[str, Object]) -> bytes:
    """A pack file of whole objects, as `git unpack-objects` and `git index-pack` read it from stdin."""
    parts = [b"PACK" + (2).to_bytes(4, "big") + len(objects).to_bytes(4, "big")]
    for item in objects.values():
        size = len(item.content)
        byte, size = (_PACK_TYPES[item.kind] << 4) | (size & 15), size >> 4
        head = bytearray()
        while size:
            head.append(byte | 0x80)
            byte, size = size & 0x7F, size >> 7
        head.append(byte)
        parts += [bytes(head), zlib.compress(item.content, 1)]
    body = b"".join(parts)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


@dataclass(frozen=True)
class BundleHeader:
    """The text before a bundle's pack. `pack` is where the pack starts."""

    references: Mapping[str, str]
    pack: int


def parse_bundle(content: bytes) -> BundleHeader:
    """Header of a git bundle, version 2 or 3 without filters. Raises ValueError with the reason."""
    first, _, _ = content[:64].partition(b"\n")
    if first not in (b"# v2 git bundle", b"# v3 git bundle"):
        raise ValueError("not a git bundle")
    references: dict[str, str] = {}
    lines = 0
    position = len(first) + 1
    while True:
        end = content.find(b"\n", position, position + 8192)
        if end < 0 or lines > 1000:
            raise ValueError("its header is damaged")
        line = content[position:end].decode("utf-8", "replace")
        position, lines = end + 1, lines + 1
        if not line:
            break
        if line.startswith("@"):
            if line != "@object-format=sha1":
                raise ValueError(f"it uses {line[1:60]!r}, which is not supported")
        elif re.fullmatch(r"-[0-9a-f]{40}(?: .*)?", line):
            pass  # a prerequisite: git looks whether it is there
        elif found := re.fullmatch(r"([0-9a-f]{40}) (\S+)", line):
            references[found[2]] = found[1]
        else:
            raise ValueError("its header is damaged")
    if content[position : position + 4] != b"PACK":
        raise ValueError("it holds no pack")
    return BundleHeader(references, position)


def encode_bundle_header(tip: str) -> bytes:
    """Header of a bundle without prerequisites that clones to a branch `main` at `tip`."""
    return f"# v2 git bundle\n{tip} HEAD\n{tip} refs/heads/main\n\n".encode()
