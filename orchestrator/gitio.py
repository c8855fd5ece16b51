"""The only place that runs git: plumbing commands, in an environment that takes nothing from the host's settings.

Nothing named in a repository's configuration is ever executed: no hooks, filters, file system monitors, pagers,
transports or promisor remotes. Objects of the user's checkout are read as alternates of our own repository, so no
`upload-pack` runs in it; it is never written.
"""

from __future__ import annotations

import functools
import re
import resource
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from orchestrator.errors import ConfigError, Failed, Refused
from orchestrator.gitobjects import EMPTY_TREE, Commit, Entry, Kind, Object, encode_pack, parse_commit, parse_tree
from orchestrator.scratch import fix_of

OLDEST = (2, 38)  # the first with `merge-tree --write-tree`
SECONDS = 300.0  # no plumbing command on a sane repository takes that long
LOOSE_UP_TO = 100  # objects of one write that are stored loose; more become a pack
MEMORY = 512 << 20  # bytes for a git process that reads foreign objects, without what it maps of files
TREE_BYTES = 4 << 20  # of one tree: some hundred thousand names, and each becomes an object here

_CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.bigFileThreshold=8m",
    "core.logAllRefUpdates=false",
    "protocol.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
    "pack.threads=1",
    "pack.writeReverseIndex=false",
    "safe.directory=*",
    "advice.detachedHead=false",
)


class GitError(Failed):
    """git ended with an error. `code` is its exit code, `stderr` what it said."""

    def __init__(self, command: str, code: int, stderr: str, where: str) -> None:
        self.code, self.stderr = code, stderr
        text = " · ".join(line.strip() for line in stderr.splitlines() if line.strip())[-600:]
        what = f"git {command} failed ({code}): {text or 'no message'}"
        super().__init__(what, where=where, fix=fix_of(text, "`git fsck` there shows what is damaged"))


@functools.cache
def binary() -> str:
    """Path of git. Raises ConfigError if it is missing or older than 2.38."""
    found = shutil.which("git")
    if not found:
        raise ConfigError("git is not installed", fix="install git 2.38 or newer")
    text = subprocess.run([found, "--version"], capture_output=True, check=False, env={"LC_ALL": "C"}).stdout.decode()
    version = re.search(r"(\d+)\.(\d+)", text)
    if not version or (int(version[1]), int(version[2])) < OLDEST:
        raise ConfigError(f"git is too old ({text.strip()})", where=found, fix="install git 2.38 or newer")
    return found


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a git process."""
    return {
        "PATH": f"{Path(binary()).parent}:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ATTR_SOURCE": EMPTY_TREE,  # newer ones read .gitattributes of HEAD in a bare repository
        "GIT_DEFAULT_REF_FORMAT": "files",  # newer ones may choose another for a new repository
        "GIT_ALLOW_PROTOCOL": "",  # set, but empty: no transport at all, whatever a configuration says
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_PAGER": "cat",
        **(extra or {}),
    }


def quoted(path: Path) -> str:
    """A path for GIT_ALTERNATE_OBJECT_DIRECTORIES, where `:` separates and a leading quote is syntax."""
    text = str(path)
    if ":" not in text and not text.startswith('"'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Git:
    """Plumbing commands on one repository. `extra` are variables such as the object directories of a quarantine."""

    def __init__(
        self,
        directory: Path,
        extra: Mapping[str, str] | None = None,
        *,
        memory: int | None = None,
        hold: Sequence[int] = (),
        durable: bool = True,
    ) -> None:
        self.directory = directory
        self.extra = dict(extra or {})
        self.memory = memory  # bytes of its heap
        self.durable = durable  # False only for scratch stores
        self.hold = tuple(hold)  # descriptors of locks that children keep, should this process die before them

    def popen(self, *arguments: str, stdin: int | IO[bytes] = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a command with pipes on stdout and stderr, in a process group of its own (Ctrl-C is ours to handle)."""
        argv = [binary(), "--no-pager", f"--git-dir={self.directory}"]
        for item in (*_CONFIG, "core.fsync=all" if self.durable else "core.fsync=none"):
            argv += ["-c", item]
        process = subprocess.Popen(
            [*argv, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(self.extra),
            cwd="/",
            process_group=0,
            pass_fds=self.hold,
        )
        if self.memory is not None:
            try:
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (self.memory, self.memory))
            except ProcessLookupError:
                pass
        return process

    def run(self, *arguments: str, data: bytes = b"", ok: Sequence[int] = (0,), seconds: float = SECONDS) -> bytes:
        """Run a command to its end and return its stdout. Raises GitError."""
        return self.result(*arguments, data=data, ok=ok, seconds=seconds).stdout

    def result(
        self, *arguments: str, data: bytes = b"", ok: Sequence[int] = (0,), seconds: float = SECONDS
    ) -> subprocess.CompletedProcess[bytes]:
        """Like `run`, with the exit code, which is one of `ok`."""
        with self.popen(*arguments, stdin=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(data, timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise GitError(arguments[0], -9, f"not finished after {seconds:.0f} s", str(self.directory)) from None
            except BaseException:
                process.kill()
                raise
        if process.returncode not in ok:
            raise GitError(arguments[0], process.returncode, err.decode("utf-8", "replace"), str(self.directory))
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def line(self, *arguments: str) -> str:
        """The single line that a command prints."""
        return self.run(*arguments).decode("utf-8", "surrogateescape").rstrip("\n")

    def commit_of(self, revision: str) -> str | None:
        """The full id of the commit that a revision names, or None."""
        if not revision or "\n" in revision or "\0" in revision:
            return None
        arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        # 1 = no such name; 128 = not even the form of a name, or an object that is missing
        out = self.run(*arguments, ok=(0, 1, 128)).decode("ascii", "replace").strip()
        return out if re.fullmatch(r"[0-9a-f]{40}", out) else None

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether `older` is `newer` or one of its ancestors."""
        return self.result("merge-base", "--is-ancestor", older, newer, ok=(0, 1)).returncode == 0

    def write(self, objects: Iterable[Object], *, strict: bool = False) -> None:
        """Store objects durably; those that exist are left alone."""
        wanted = {item.oid: item for item in objects}
        if wanted:
            self._store(encode_pack(wanted), len(wanted), strict=strict)

    def _store(self, pack: bytes, count: int, *, strict: bool) -> None:
        self.run(*_store_command(count, strict=strict), data=pack)

    def receive(self, source: Git, include: Sequence[str], exclude: Sequence[str] = (), *, ours: bool = True) -> None:
        """Copy the objects that `include` needs from `source` (which sees both stores) into this repository.

        Leaves out what `exclude` reaches and, with `ours`, all that this repository's refs reach.
        """
        revisions = [*include, *(f"^{commit}" for commit in exclude)]
        if ours:
            revisions += self.line("for-each-ref", "--format=^%(objectname)").split()
        with source.popen("pack-objects", "--revs", "--stdout", "--quiet", stdin=subprocess.PIPE) as packer:
            assert packer.stdin and packer.stdout and packer.stderr
            try:
                packer.stdin.write("".join(f"{revision}\n" for revision in revisions).encode())
                packer.stdin.close()
                head = packer.stdout.read(12)
                if len(head) == 12:
                    self._pump(head, packer.stdout)
            except BaseException:
                packer.kill()
                raise
            errors = packer.stderr.read().decode("utf-8", "replace")
        if packer.returncode:
            raise GitError("pack-objects", packer.returncode, errors, str(source.directory))

    def _pump(self, head: bytes, rest: IO[bytes]) -> None:
        count = int.from_bytes(head[8:12], "big")
        arguments = _store_command(count, strict=False)
        with self.popen(*arguments, stdin=subprocess.PIPE) as writer:
            assert writer.stdin and writer.stderr and writer.stdout
            try:
                writer.stdin.write(head)
                shutil.copyfileobj(rest, writer.stdin, 1 << 20)
                writer.stdin.close()
            except BrokenPipeError:
                pass  # its message says why
            except BaseException:
                writer.kill()
                raise
            writer.stdout.read()
            errors = writer.stderr.read().decode("utf-8", "replace")
        if writer.returncode:
            raise GitError(arguments[0], writer.returncode, errors, str(self.directory))

    @contextmanager
    def objects(self) -> Iterator[Objects]:
        """A reader over one `cat-file` process: any number of objects for the price of one start."""
        process = self.popen("cat-file", "--batch-command", stdin=subprocess.PIPE)
        try:
            with process:
                try:
                    yield Objects(process, str(self.directory))
                finally:
                    process.kill()  # it only reads
        except BrokenPipeError:
            raise GitError("cat-file", -1, "it ended early", str(self.directory)) from None


def _store_command(count: int, *, strict: bool) -> list[str]:
    options = ["--strict"] if strict else []
    if count <= LOOSE_UP_TO:
        return ["unpack-objects", "-q", *options]
    return ["index-pack", "--stdin", "--fix-thin", *options]


class Objects:
    """Reads objects by name (`<id>`, `<commit>^{tree}`, `<commit>:path`). Not for several threads at once."""

    def __init__(self, process: subprocess.Popen[bytes], where: str) -> None:
        assert process.stdin and process.stdout
        self._in, self._out, self._where = process.stdin, process.stdout, where

    def _ask(self, command: str, name: str) -> tuple[str, str, int] | None:
        if "\n" in name:
            return None  # would be two commands
        self._in.write(f"{command} {name}\n".encode("utf-8", "surrogateescape"))
        self._in.flush()
        words = self._out.readline().decode("utf-8", "replace").split()
        if len(words) == 3 and words[2].isdigit():
            return words[0], words[1], int(words[2])
        if words and words[-1] in ("missing", "ambiguous"):
            return None
        raise GitError("cat-file", 1, " ".join(words) or "damaged object", self._where)

    def info(self, name: str) -> tuple[str, str, int] | None:
        """(id, kind, size in bytes), or None if there is no such object."""
        return self._ask("info", name)

    def read(self, name: str, kind: Kind, limit: int = 64 << 20) -> bytes:
        """Content of an object. Raises GitError if it is missing, of another kind, or larger than `limit` bytes."""
        found = self.info(name)
        if not found or found[1] != kind:
            raise GitError(
                "cat-file", 1, f"{name}: {'a ' + found[1] if found else 'missing'}, not a {kind}", self._where
            )
        if found[2] > limit:
            raise GitError("cat-file", 1, f"{name}: {found[2]} bytes, more than {limit}", self._where)
        self._ask("contents", found[0])
        content = self._out.read(found[2])
        self._out.read(1)
        return content

    def tree(self, name: str) -> list[Entry]:
        """Entries of a tree. Raises Refused if it is larger than TREE_BYTES."""
        if name == EMPTY_TREE:
            return []
        found = self.info(name)
        if found and found[2] > TREE_BYTES:
            what = f"a directory with a list of names of {found[2]} bytes, more than {TREE_BYTES}"
            raise Refused(what, where=f"tree {found[0][:12]}", fix="keep fewer files in one directory")
        return parse_tree(self.read(name, "tree"))

    def commit(self, name: str) -> Commit:
        """A commit."""
        return parse_commit(self.read(name, "commit"))
