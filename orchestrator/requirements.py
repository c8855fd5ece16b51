"""Requirements files of candidates, read strictly: `name==version`, markers and hashes, and nothing else.

A candidate writes this file, and an installer would do much more with it than install (read other files, clone
repositories, expand variables of the host). So it is parsed here, and installers only see what is written anew from
the parsed entries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.errors import Refused

MAX_BYTES = 256 << 10
MAX_ENTRIES = 500
_ENTRY = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?) ?== ?(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
    r" ?(?:; ?(?P<marker>[A-Za-z0-9_ .,'\"<>=!~()-]+))?"
)
_HASH = re.compile(r"--hash=(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})")
_FIX = (
    "list `name==version --hash=sha256:…` lines only (uv pip compile --generate-hashes, pip-compile --generate-hashes)"
)


@dataclass(frozen=True)
class Requirement:
    """One pinned package. `name` is normalised, `hashes` are sorted `algorithm:digest` texts, never empty."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    def line(self) -> str:
        """As an installer reads it."""
        marker = f" ; {self.marker}" if self.marker else ""
        return " ".join([f"{self.name}=={self.version}{marker}", *(f"--hash={digest}" for digest in self.hashes)])


def parse(content: bytes, where: str = "requirements") -> tuple[Requirement, ...]:
    """The entries, sorted. Raises Refused, naming the line, for anything but pinned packages with hashes."""
    if len(content) > MAX_BYTES:
        raise Refused(f"larger than {MAX_BYTES >> 10} kB", where=where, fix=_FIX)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"not UTF-8 (byte {error.start})", where=where, fix="save the file as UTF-8") from None
    found = {_entry(line, f"{where}, line {number}") for number, line in _logical_lines(text)}
    if len(found) > MAX_ENTRIES:
        raise Refused(f"more than {MAX_ENTRIES} packages", where=where, fix=_FIX)
    return tuple(sorted(found, key=lambda entry: (entry.name, entry.version, entry.marker, entry.hashes)))


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """(number of the first physical line, line without comments), continuations joined, empty ones left out."""
    lines: list[tuple[int, str]] = []
    started, buffer = 0, ""
    for number, raw in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw).rstrip()
        started = started or number
        if line.endswith("\\"):
            buffer += line[:-1] + " "
            continue
        if (buffer + line).strip():
            lines.append((started, (buffer + line).strip()))
        started, buffer = 0, ""
    if buffer.strip():
        lines.append((started, buffer.strip()))
    return lines


def _entry(line: str, where: str) -> Requirement:
    if reason := _forbidden(line):
        raise Refused(f"{reason} ({line[:80]!r})", where=where, fix=_FIX)
    words = line.split()
    count = next((n for n, word in enumerate(words) if word.startswith("--hash=")), len(words))
    hashes = words[count:]
    match = _ENTRY.fullmatch(" ".join(words[:count]))  # without runs of spaces, on which it would start again and again
    if not match or not all(word.startswith("--hash=") for word in hashes):
        raise Refused(f"not of the form name==version ({line[:80]!r})", where=where, fix=_FIX)
    if not hashes:
        raise Refused(f"{match['name']} has no hash", where=where, fix=_FIX)
    if bad := [item for item in hashes if not _HASH.fullmatch(item)]:
        raise Refused(f"{match['name']} has an unusable hash ({bad[0][:80]!r})", where=where, fix=_FIX)
    digests = tuple(sorted({item.removeprefix("--hash=") for item in hashes}))
    name = re.sub(r"[-_.]+", "-", match["name"]).lower()
    return Requirement(name, match["version"], (match["marker"] or "").strip(), digests)


def _forbidden(line: str) -> str | None:
    head = re.split(r"\s--hash=", line)[0]
    if "${" in line or "$(" in line or "`" in line:
        return "variables are not expanded"
    if head.startswith("-"):
        return f"the option {head.split()[0].split('=')[0]} is not allowed"
    if "://" in head or re.match(r"(git|hg|svn|bzr)\+", head):
        return "URLs are not allowed"
    if "@" in head.split(";")[0]:
        return "direct references are not allowed"
    if head.startswith((".", "/", "~")) or "/" in head or "\\" in head or head.endswith((".whl", ".zip", ".gz")):
        return "paths are not allowed"
    if "[" in head.split(";")[0]:
        return "extras are not allowed: list the packages they stand for"
    return None
