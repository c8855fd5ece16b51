"""The command line of bwrap: one pure function from a specification to a list of options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox import runner
from sandbox.errors import CannotIsolate
from sandbox.rootfs import Base
from sandbox.spec import Overlay, SandboxSpec

HOME = "/home/agent"
ID = 1000  # uid and gid inside
MEGABYTE = 1 << 20
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",
}
TMPFS = ("/tmp", "/run", HOME, "/dev/shm")
NOT_OVERLAID = ("/", "/tmp", "/run", HOME)
NOT_BELOW = ("/usr/", "/etc/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/proc/", "/dev/", "/sys/")
CERTIFICATES = ("/etc/ssl/certs", "/etc/pki/tls")  # only of use with a network, and each mount costs time
OPTION_LIMIT = 4095  # bytes of mount options; the kernel cuts the rest silently
OPTION_FIXED = len("lowerdir=,upperdir=,workdir=,userxattr,") + 16
OLDROOT = len("/oldroot")  # what bwrap puts before each path


@dataclass(frozen=True)
class System:
    """What the host's own directories look like: dest → symlink target, or None for a directory to be bound."""

    top: Mapping[str, str | None]
    etc: tuple[str, ...]  # below /etc, shown read-only
    files: Mapping[str, bytes]  # copied


def look_at_system() -> System:
    """Which of the usual top directories exist here, and as what."""
    top: dict[str, str | None] = {}
    for name in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"):
        path = Path(name)
        if path.is_symlink():
            top[name] = str(path.readlink())
        elif path.is_dir():
            top[name] = None
    etc = tuple(name for name in ("/etc/alternatives", *CERTIFICATES) if Path(name).exists())
    cache = Path("/etc/ld.so.cache")  # a copy in memory is cheaper than one more mount
    return System(top, etc, {str(cache): cache.read_bytes()} if cache.exists() else {})


@functools.lru_cache(maxsize=16)
def etc_files(hostname: str, network: str | tuple[str, ...]) -> Mapping[str, bytes]:
    """Files of /etc that are made, not shown: the host's names and users are nobody's business inside."""
    files = {
        "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{ID}:{ID}:agent:{HOME}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "/etc/group": f"root:x:0:\nagent:x:{ID}:\nnogroup:x:65534:\n",
        "/etc/hosts": f"127.0.0.1 localhost {hostname}\n::1 localhost\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
    if network == "host":  # a copy: it is a symlink out of what is shown, on many machines
        resolver = Path("/etc/resolv.conf")
        files["/etc/resolv.conf"] = resolver.read_text(errors="replace") if resolver.exists() else ""
    return {name: text.encode() for name, text in files.items()}


def check(spec: SandboxSpec) -> None:
    """Raise CannotIsolate for a specification whose isolation would not hold."""
    dests = [overlay.dest for overlay in spec.overlays]
    mounted = [*(bind.dest for bind in spec.binds), *spec.files]
    for name in (*dests, *mounted, *spec.directories, spec.workdir):
        if not name.startswith("/") or "\0" in name or f"{name}/".find("/../") >= 0 or "//" in name:
            raise CannotIsolate("a path inside a sandbox must be absolute, without .. and //", where=repr(name))
    if not spec.command or any("\0" in word for word in (*spec.command, *spec.env, *spec.env.values())):
        raise CannotIsolate("a command needs at least one word, and no NUL", where=repr(spec.command)[:80])
    for dest in dests:
        if dest in NOT_OVERLAID or f"{dest}/".startswith(NOT_BELOW):
            raise CannotIsolate("an overlay can't lie there", where=dest, fix="use a directory of its own, as /app")
        if any(other.startswith(f"{dest}/") for other in dests) or dests.count(dest) > 1:
            raise CannotIsolate("overlays can't lie in one another", where=dest)
        inside = [name for name in mounted if name.startswith(f"{dest}/")]
        if inside:  # bwrap follows symlinks that an instance planted in a layer (CVE-2026-87766)
            raise CannotIsolate("nothing may be mounted below a layer that an instance writes", where=inside[0])


class Descriptors:
    """Hands out descriptor numbers for what bwrap reads, and remembers the contents."""

    def __init__(self, first: int) -> None:
        self.next, self.contents = first, dict[int, bytes]()

    def add(self, content: bytes) -> str:
        """A number under which `content` will be readable."""
        self.contents[self.next] = content
        self.next += 1
        return str(self.next - 1)


def build(
    spec: SandboxSpec,
    system: System,
    python_roots: Sequence[Path],
    place: Callable[[Path], Path],
    descriptors: Descriptors,
    pid1: bytes,
    seccomp: bytes,
    base: Base | None = None,
) -> list[str]:
    """Options for `--args`, in the order that SANDBOX's rules ask for; overlays last.

    `place` turns a host path into the one under which bwrap can reach it. `base`: in place of the host's `system`.
    """
    options = [*_namespaces(spec), "--clearenv"]
    if base is not None:
        system = System({}, (), {})
    files: Mapping[str, bytes] = {**_etc(spec, base), **system.files, **spec.files}
    directories = _directories(spec, base)
    made = [*system.etc, *system.top, *TMPFS, *map(str, python_roots), *(bind.dest for bind in spec.binds), *spec.files]
    for parent in _parents([*made, *directories, spec.workdir]) if base is None else ():
        options += ["--dir", parent]  # bwrap itself makes parents with mode 0700
    for name, value in {**ENVIRONMENT, **spec.env}.items():
        options += ["--setenv", name, value]
    if base is None:
        options += _system(system, spec)
    else:
        mounts = [*made, *files, *directories, runner.PATH]
        etc, files = base.merge_etc(files, mounts, place)
        if etc:
            mounts = ["/etc", *(name for name in mounts if not name.startswith("/etc/"))]
        options += [*base.options(mounts, place), *etc]
    limits = spec.limits
    for dest, mode, size in (("/tmp", "1777", limits.tmp_mb), ("/run", "0755", 16), (HOME, "0700", limits.tmp_mb)):
        options += ["--perms", mode, "--size", str(size * MEGABYTE), "--tmpfs", dest]
    for root in python_roots:
        options += ["--ro-bind", str(place(root)), str(root)]
    options += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
    options += [
        "--perms",
        "1777",
        "--size",
        str(limits.shm_mb * MEGABYTE),
        "--tmpfs",
        "/dev/shm",
        "--remount-ro",
        "/dev",
    ]
    for bind in spec.binds:
        options += ["--ro-bind", str(place(bind.source)), bind.dest]
    for name, content in files.items():
        writable_place = any(name.startswith(f"{top}/") for top in TMPFS)
        options += ["--perms", "0444", "--ro-bind-data" if writable_place else "--file", descriptors.add(content), name]
    options += ["--perms", "0111", "--file", descriptors.add(pid1), runner.PATH]
    for dest in directories:
        options += ["--dir", dest]
    options += ["--remount-ro", "/"]
    for overlay in spec.overlays:
        options += _overlay(overlay, place)
    return [*options, "--chdir", spec.workdir, "--add-seccomp-fd", descriptors.add(seccomp)]


MOUNTED = tuple(f"{top}/" for top in (*TMPFS, "/usr", "/proc", "/dev", "/bin", "/sbin", "/lib", "/lib64"))


def _parents(dests: Sequence[str]) -> list[str]:
    """Every directory above `dests` that lies in the sandbox's root itself, each once, from the top down."""
    found: set[str] = set()
    for dest in dests:
        cut = dest.rfind("/", 1)
        while cut > 0 and dest[:cut] not in found:
            found.add(dest[:cut])
            cut = dest.rfind("/", 0, cut)
    return sorted(name for name in found if not f"{name}/".startswith(MOUNTED))


def _namespaces(spec: SandboxSpec) -> list[str]:
    words = "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try --disable-userns"
    words += " --assert-userns-disabled --die-with-parent --new-session --as-pid-1"
    net = [] if spec.network == "host" else ["--unshare-net"]
    ids = ["--uid", str(ID), "--gid", str(ID)]
    return [*words.split(), *net, *ids, "--cap-drop", "ALL", "--hostname", spec.hostname]


def _system(system: System, spec: SandboxSpec) -> list[str]:
    options = []
    for dest, target in system.top.items():
        options += ["--ro-bind", dest, dest] if target is None else ["--symlink", target, dest]
    for name in system.etc:
        if spec.network != "none" or name not in CERTIFICATES:
            options += ["--ro-bind", name, name]
    return options


def _etc(spec: SandboxSpec, base: Base | None) -> Mapping[str, bytes]:
    made = etc_files(spec.hostname, spec.network)
    return base.etc_files(made) if base else made


def _directories(spec: SandboxSpec, base: Base | None) -> list[str]:
    """Directories to make: what the specification asks for and an image does not bring, and every overlay's place."""
    overlays = [overlay.dest for overlay in spec.overlays]
    wanted = [*spec.directories, *overlays, *_workdir(spec)]
    return [dest for dest in wanted if base is None or dest in overlays or not base.has_directory(dest)]


def _workdir(spec: SandboxSpec) -> list[str]:
    """The workdir, if nothing else makes it."""
    made = [*(o.dest for o in spec.overlays), *(b.dest for b in spec.binds), *TMPFS, "/usr", "/etc", "/proc", "/dev"]
    there = spec.workdir == "/" or any(f"{spec.workdir}/".startswith(f"{place}/") for place in made)
    return [] if there else [spec.workdir]


def _overlay(overlay: Overlay, place: Callable[[Path], Path]) -> list[str]:
    # Through their common parent: two bind mounts, even of one file system, would count as two.
    top = place(overlay.upper.parent)
    upper = top / overlay.upper.name
    work = (top if overlay.work.parent == overlay.upper.parent else place(overlay.work.parent)) / overlay.work.name
    lowers = [place(lower) for lower in overlay.lowers]
    used = OPTION_FIXED + sum(escaped_length(path) + OLDROOT + 1 for path in (upper, work, *lowers))
    if used > OPTION_LIMIT:
        raise CannotIsolate(
            f"{len(lowers)} layers need {used} bytes of mount options, the kernel takes {OPTION_LIMIT}",
            where=overlay.dest,
            fix="flatten older layers into one, or use a shorter SIA_HOME",
        )
    sources = [word for lower in lowers for word in ("--overlay-src", str(lower))]
    return [*sources, "--overlay", str(upper), str(work), overlay.dest]


def escaped_length(path: Path) -> int:
    """Bytes of a path in overlay mount options, where commas, colons and backslashes are escaped."""
    name = bytes(path)
    return len(name) + sum(name.count(char) for char in (b",", b":", b"\\"))
