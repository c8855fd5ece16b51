"""What this process can isolate with: found once, then used for every launch."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox import arguments, bwrap, filesystems, filter, lookup, memory, orphans, runner
from sandbox.errors import CannotIsolate, SandboxFailed
from sandbox.exposure import Exposure
from sandbox.launcher import Launcher
from sandbox.ramdisks import Ramdisks, is_left
from sandbox.spec import Limits, SandboxSpec

if TYPE_CHECKING:
    from sandbox.process import Sandbox

SANDBOX_UID = 61001  # uid and gid of all sandboxes when the supervisor is root; belongs to nobody on common systems
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEUTRAL = Path("/run/.sia")  # as root: where the spawner's private tmpfs lies


class Host:
    """One supervisor's means of isolation. Several may exist at the same time, in one process or many.

    `root` says whether this process is root; then sandboxes run as the unprivileged `uid`/`gid` below, else as this
    user. Callers pass ordinary host paths everywhere. Thread-safe. Use as a context manager or call `close()`.
    """

    def __init__(self, state: Path, launcher: Launcher, found: bwrap.Bubblewrap, groups: memory.Enforcer) -> None:
        """Use `detect`."""
        self.state = state
        self.root = launcher.uid is not None
        self.uid = launcher.uid if launcher.uid is not None else os.getuid()
        self.gid = launcher.uid if launcher.uid is not None else os.getgid()
        self.bubblewrap, self.bwrap = found, found.path
        self.memory, self.memory_enforcer = groups, groups.name
        self.launcher = launcher
        self.system = arguments.look_at_system()
        self.pid1 = runner.program()
        self.exposure = Exposure(state, self.uid, NEUTRAL, launcher.request) if self.root else None
        self.ramdisks = Ramdisks(launcher, NEUTRAL if self.root else state / "ramdisks")
        self.program = self._program()
        self.resolve: lookup.Resolve = lookup.resolve  # names, for sandboxes with an allow-list
        self.live: set[Sandbox] = set()
        self.presence = orphans.Presence(state)
        for path in self.presence.left:
            self.remove(path)
        self.presence.share()
        self.closed = False

    @classmethod
    def detect(cls, state: Path) -> Host:
        """Find bwrap, pid 1, seccomp and a memory enforcer; start the spawner. `state` (created if
        missing) is the directory below which uppers lie. Raises CannotIsolate with the reason and the fix.

        Takes some 50 ms. `sandbox.doctor.prove(host)` tries a launch and names what the machine forbids.
        """
        try:
            state.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotIsolate(f"can't be created ({error.strerror})", where=str(state), fix="set SIA_HOME") from None
        found = bwrap.find()
        runner.program()
        filter.program()
        root = os.geteuid() == 0
        if root:
            NEUTRAL.mkdir(mode=0o755, exist_ok=True)
        launcher, enforcer = _launcher(root)
        try:
            return cls(state.resolve(), launcher, found, enforcer)
        except BaseException:
            launcher.close()
            enforcer.close()
            raise

    def _program(self) -> str:
        """The bwrap to execute: as root a copy that the sandbox uid can reach, made from verified files."""
        if not self.root:
            return str(self.bwrap)
        root = self.bubblewrap.root or self.bwrap.parent
        names = self.bubblewrap.files or (self.bwrap.name,)
        place = NEUTRAL / "bwrap/package"
        copies = {os.path.normpath(place / name): str(root / name) for name in names}
        error = self.launcher.request({"copy": copies})
        if error:
            raise CannotIsolate(f"bwrap can't be copied ({error})", where=str(self.bwrap))
        return os.path.normpath(place / names[0])

    def seccomp(self, spec: SandboxSpec) -> bytes:
        """The system call filter of a sandbox."""
        watched = spec.limits.memory_mb is not None and isinstance(self.memory, memory.Watchdog)
        return filter.program(watched=True) if watched else filter.program()

    def place(self, path: Path) -> Path:
        """The path under which bwrap reaches `path`."""
        in_memory = self.ramdisks.place(path)
        return in_memory or (self.exposure.place(path) if self.exposure else path.absolute())

    def lend(self, path: Path) -> None:
        """Let sandboxes use somebody else's directory as a lower layer as if it was theirs; nothing of it changes.

        Only needed as root. Raises SandboxFailed where this kernel or file system can't (copy and `own` it then).
        """
        if self.exposure:
            self.exposure.lend(path)

    def space(self, parent: Path, limits: Limits) -> Path:
        """Where uppers of one sandbox shall lie: `parent`, for `make_upper`. With `limits.upper` "memory" it becomes
        a tmpfs of the limits' size, which `remove(parent)` gives back; till then everything can be read there.

        Raises CannotIsolate with the reason where this machine can't do that.
        """
        if limits.upper == "memory":
            try:
                parent.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SandboxFailed(f"can't be created ({error.strerror})", where=str(parent)) from None
            if is_left(parent):
                parent.unlink()
            self.ramdisks.make(parent, limits)
        return parent

    def make_upper(self, parent: Path, name: str) -> tuple[Path, Path]:
        """Create `parent/name/{upper,work}` for the sandbox uid, in a directory that is 0700; return both."""
        top = parent / name
        try:
            parent.mkdir(parents=True, exist_ok=True)
            filesystems.check_upper(parent)
            top.mkdir(mode=0o700)
            upper, work = top / "upper", top / "work"
            upper.mkdir(mode=0o755)
            work.mkdir(mode=0o755)
            if self.root:
                for path in (upper, work, top):
                    os.chown(path, self.uid, self.gid, follow_symlinks=False)
        except OSError as error:
            raise SandboxFailed(f"can't be created ({error.strerror})", where=str(top)) from None
        return upper, work

    def own(self, path: Path) -> None:
        """Give the tree at `path` to the sandbox uid (never follows symlinks). Nothing to do for a user."""
        if not self.root:
            return
        os.chown(path, self.uid, self.gid, follow_symlinks=False)
        if path.is_dir() and not path.is_symlink():
            self._own_below(os.open(path, _DIRECTORY))

    def _own_below(self, here: int) -> None:
        """Everything in an open directory, which is closed. An instance may have nested it deeper than Python's stack,
        so nothing recurses; nor could it have moved what `..` leads to, since it has ended."""
        waiting = [self._own_entries(here)]  # directories to be entered, for each level
        try:
            while waiting:
                if waiting[-1]:
                    here = _exchange(here, waiting[-1].pop())
                    waiting.append(self._own_entries(here))
                    continue
                waiting.pop()
                if waiting:
                    here = _exchange(here, "..")
        finally:
            os.close(here)

    def _own_entries(self, directory: int) -> list[str]:
        """What lies in it; returns the names of directories."""
        with os.scandir(directory) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, _ in found:
            os.chown(name, self.uid, self.gid, dir_fd=directory, follow_symlinks=False)
        return [name for name, is_directory in found if is_directory]

    def remove(self, path: Path) -> None:
        """Remove a tree that an instance may have written (mode-000 directories, `work/work`…). Missing is fine."""
        if self.exposure:
            self.exposure.forget(path)
        self.ramdisks.release(path)
        try:
            if path.is_symlink() or not path.is_dir():  # what a link leads to need not even be ours to look at
                path.unlink(missing_ok=True)
            else:
                _remove_tree(path)
        except OSError as error:
            raise SandboxFailed(f"can't be removed ({error.strerror})", where=str(path)) from None

    def close(self) -> None:
        """Kill what is left of this host's sandboxes, and release everything. May be called twice."""
        if self.closed:
            return
        self.closed = True
        for sandbox in list(self.live):
            sandbox.kill()
        self.ramdisks.close()
        self.launcher.close()
        self.memory.close()
        self.presence.close()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _launcher(root: bool) -> tuple[Launcher, memory.Enforcer]:
    """A spawner, and what bounds memory for its children: a scope of the user's systemd needs one started for it."""
    launcher = Launcher.start(SANDBOX_UID if root else None, NEUTRAL)
    enforcer = memory.find(launcher.pid)
    prefix = memory.scope_prefix() if isinstance(enforcer, memory.Watchdog) else []
    if not prefix:
        return launcher, enforcer
    try:
        scoped = Launcher.start(None, NEUTRAL, prefix)
    except CannotIsolate as error:  # systemd refuses: watch instead
        return launcher, memory.Watchdog(f"{enforcer.why}; systemd scope: {error.what}")
    better = memory.enter_scope(scoped.pid)
    if isinstance(better, memory.Watchdog):
        scoped.close()
        return launcher, memory.Watchdog(f"{enforcer.why}; {better.why}")
    launcher.close()
    return scoped, better


def _exchange(directory: int, name: str) -> int:
    """A directory in, or above, an open one, which is closed."""
    other = os.open(name, _DIRECTORY, dir_fd=directory)
    os.close(directory)
    return other


def _remove_tree(top: Path) -> None:
    """Remove a directory of any depth: what lies two levels down is first moved up, so no path grows and nothing
    recurses (an instance can nest directories deeper than PATH_MAX, and than Python's stack)."""
    _open_up(top.name, os.open(top.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), close=True)
    token, count = secrets.token_hex(8), 0
    here = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while directories := _unlink_files(here):
            for name in directories:
                _open_up(name, here)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                try:
                    for nested in _unlink_files(inner):
                        _open_up(nested, inner)
                        count += 1
                        os.rename(nested, f".{token}.{count}", src_dir_fd=inner, dst_dir_fd=here)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)
    top.rmdir()


def _unlink_files(directory: int) -> list[str]:
    """Remove everything but directories; return their names."""
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in found if is_directory]


def _open_up(name: str, parent: int, *, close: bool = False) -> None:
    """Let its owner read, change and move a directory (mode 000 forbids all of it)."""
    try:
        mode = os.lstat(name, dir_fd=parent).st_mode
        if os.geteuid() != 0 and stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
            os.chmod(name, 0o700, dir_fd=parent)
    finally:
        if close:
            os.close(parent)
