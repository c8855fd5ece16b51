"""The lines of a task's Dockerfile that make sense without building an image: WORKDIR, COPY, ENV."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import ConfigError

IGNORED = {"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "SHELL", "STOPSIGNAL", "USER", "VOLUME"}
_VARIABLE = re.compile(r"\\(.)|\$(?:\{(\w+)(?:(:?[-+])([^}]*))?\}|(\w+))")


@dataclass(frozen=True)
class Copy:
    """One source of a COPY: `source` (a file, or a directory whose content is meant) goes to `dest` inside."""

    source: Path
    dest: str


@dataclass
class Layout:
    """What a Dockerfile says about the starting files. `workdir` is None if it names none."""

    workdir: str | None = None
    copies: list[Copy] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_dockerfile(path: Path, workdir: str, *, built: bool = False) -> Layout:
    """The layout that `path` describes. Relative places start at `workdir` until a WORKDIR line.

    `built`: the task names a rootfs that was made from it, so what needs an image build is there already.
    Raises ConfigError, with the line's number, for everything that needs an image build.
    """
    reader = _Reader(path, workdir, built)
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't be read: {error}", where=str(path), fix="save it as UTF-8 text") from None
    for number, keyword, rest in _instructions(text):
        reader.take(number, keyword, rest)
    return reader.layout


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, keyword and arguments, with continued lines joined and comments dropped."""
    joined, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not joined and not line.strip()):
            continue
        start = start if joined else number
        if line.rstrip().endswith("\\"):
            joined += line.rstrip()[:-1] + " "
            continue
        keyword, _, rest = (joined + line).strip().partition(" ")
        joined = ""
        if keyword:
            yield start, keyword.upper(), rest.strip()
    if joined.strip():
        keyword, _, rest = joined.strip().partition(" ")
        yield start, keyword.upper(), rest.strip()


class _Reader:
    def __init__(self, path: Path, workdir: str, built: bool) -> None:
        self.path, self.here, self.built = path, workdir, built
        self.layout = Layout()
        self.arguments: dict[str, str] = {}
        self.stages = 0

    def take(self, number: int, keyword: str, rest: str) -> None:
        """Apply one instruction."""
        if keyword == "FROM":
            self.stages += 1
            if self.stages > 1 and not self.built:
                raise self.fault(number, "a build in several stages", "put the built files into environment/")
            base = "the rootfs" if self.built else "host"
            self.layout.notes.append(f"Dockerfile: {base} instead of {rest.split()[0] if rest else '?'}")
        elif keyword == "RUN" and self.built:
            self.layout.notes.append(f"Dockerfile: `RUN {rest[:60]}` is taken as done in the rootfs")
        elif keyword == "RUN":
            fix = "name a rootfs in which it was done ([environment] rootfs), or do in environment/ what it does"
            raise self.fault(number, f"`RUN {rest[:60]}` needs an image build", fix)
        elif keyword == "WORKDIR":
            self.here = posixpath.normpath(posixpath.join(self.here, self.expand(rest.strip("\"'"))))
            self.layout.workdir = self.here
        elif keyword in ("COPY", "ADD"):
            self.copy(number, keyword, rest)
        elif keyword == "ENV":
            self.layout.env.update(self.assignments(number, rest))
        elif keyword == "ARG":
            name, _, value = rest.partition("=")
            self.arguments.setdefault(name.strip(), self.expand(value.strip("\"'")))
        elif keyword in IGNORED:
            self.layout.notes.append(f"Dockerfile: {keyword} is ignored")
        else:
            raise self.fault(number, f"unknown instruction {keyword[:30]!r}", "use WORKDIR, COPY and ENV")

    def copy(self, number: int, keyword: str, rest: str) -> None:
        """COPY and local ADD: the sources, matched in environment/, to their places."""
        words = self.words(number, rest)
        while words and words[0].startswith("--"):
            option = words.pop(0)
            if option.startswith("--from") and self.built:
                self.layout.notes.append(f"Dockerfile: {keyword} {option} is taken as done in the rootfs")
                return
            if option.startswith("--from"):
                raise self.fault(number, f"{keyword} {option}", "put the files into environment/")
            self.layout.notes.append(f"Dockerfile: {option} is ignored")
        if len(words) < 2 or "<<" in rest:
            raise self.fault(number, f"{keyword} without a source and a place", "write COPY SOURCE… PLACE")
        *patterns, place = (self.expand(word) for word in words)
        sources = [source for pattern in patterns for source in self.match(number, keyword, pattern)]
        dest = posixpath.normpath(posixpath.join(self.here, place))
        into = place.endswith("/") or place in (".", "..") or len(sources) > 1
        for source in sources:
            inside = into and not source.is_dir()
            self.layout.copies.append(Copy(source, posixpath.join(dest, source.name) if inside else dest))

    def match(self, number: int, keyword: str, pattern: str) -> list[Path]:
        """The files of environment/ that a source names."""
        if keyword == "ADD" and re.match(r"\w+://|git@|.*\.(tar|tgz|tar\.\w+)$", pattern):
            raise self.fault(number, f"ADD {pattern[:60]} fetches or unpacks", "put the files into environment/")
        relative = posixpath.normpath(pattern.lstrip("/") or ".")
        if relative == ".." or relative.startswith("../"):
            raise self.fault(number, f"{pattern!r} lies outside environment/", "name files of environment/")
        base = self.path.parent
        found = [base] if relative == "." else sorted(base.glob(relative))
        if not found:
            raise self.fault(number, f"{keyword}: no {pattern!r} in environment/", "correct the name")
        if any(base.resolve() not in (path.resolve(), *path.resolve().parents) for path in found):
            raise self.fault(number, f"{pattern!r} leads out of environment/", "copy the files, not links to them")
        return found

    def assignments(self, number: int, rest: str) -> dict[str, str]:
        """`ENV key=value …` and the old `ENV key value`."""
        first, _, value = rest.partition(" ")
        if "=" not in first:
            return {first: self.expand(value.strip())}
        pairs = (word.partition("=") for word in self.words(number, rest))
        return {name: self.expand(value) for name, _, value in pairs}

    def words(self, number: int, rest: str) -> list[str]:
        """Split arguments: a JSON list or words in shell quoting."""
        try:
            if rest.startswith("["):
                return [str(word) for word in json.loads(rest)]
            return shlex.split(rest)
        except ValueError as error:
            raise self.fault(number, f"can't be parsed: {error}", "check the quotes") from None

    def expand(self, text: str) -> str:
        """Substitute $NAME, ${NAME}, ${NAME:-default} and ${NAME:+other} from ENV and ARG lines above."""
        known = self.arguments | self.layout.env

        def value(match: re.Match[str]) -> str:
            escaped, name, operator, other, short = match.groups()
            if escaped is not None:
                return str(escaped)
            found = known.get(name or short, "")
            if operator and operator.endswith("-"):
                return found or other
            return (other if found else "") if operator else found

        return _VARIABLE.sub(value, text)

    def fault(self, number: int, what: str, fix: str) -> ConfigError:
        return ConfigError(what, where=f"{self.path}:{number}", fix=fix)
