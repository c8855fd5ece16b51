"""The command line of bwrap, against a golden list."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.arguments import Descriptors, System, build, escaped_length
from sandbox.errors import CannotIsolate
from sandbox.spec import Bind, Limits, Overlay, SandboxSpec

SYSTEM = System({"/usr": None, "/bin": "usr/bin"}, ("/etc/alternatives",), {"/etc/ld.so.cache": b"cache"})
GOLDEN = """
--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try --disable-userns
--assert-userns-disabled --die-with-parent --new-session --as-pid-1 --unshare-net
--uid 1000 --gid 1000 --cap-drop ALL --hostname instance --clearenv
--dir /etc --dir /home --dir /opt --dir /opt/base --dir /root
--setenv PATH /usr/local/bin:/usr/bin:/bin --setenv HOME /home/agent --setenv LANG C.UTF-8
--setenv TERM dumb --setenv TMPDIR /tmp --setenv A 1
--ro-bind /usr /usr --symlink usr/bin /bin --ro-bind /etc/alternatives /etc/alternatives
--perms 1777 --size 268435456 --tmpfs /tmp --perms 0755 --size 16777216 --tmpfs /run
--perms 0700 --size 268435456 --tmpfs /home/agent --ro-bind /n/opt/base/python /opt/base/python
--proc /proc --ro-bind /proc/sys /proc/sys --dev /dev --perms 1777 --size 67108864 --tmpfs /dev/shm --remount-ro /dev
--ro-bind /n/host/agent /root/sia
--perms 0444 --file 64 /etc/passwd --perms 0444 --file 65 /etc/group --perms 0444 --file 66 /etc/hosts
--perms 0444 --file 67 /etc/nsswitch.conf --perms 0444 --file 68 /etc/ld.so.cache
--perms 0444 --ro-bind-data 69 /run/sia/note --perms 0111 --file 70 /runner
--dir /root/data --dir /app --remount-ro /
--overlay-src /n/l/1 --overlay-src /n/l/2 --overlay /n/u/upper /n/u/work /app
--chdir /app --add-seccomp-fd 71
"""


def spec(**fields: object) -> SandboxSpec:
    values: dict[str, object] = {
        "command": ("true",),
        "workdir": "/app",
        "env": {"A": "1"},
        "binds": (Bind(Path("/host/agent"), "/root/sia"),),
        "overlays": (Overlay("/app", (Path("/l/1"), Path("/l/2")), Path("/u/upper"), Path("/u/work")),),
        "files": {"/run/sia/note": b"text"},
        "directories": ("/root/data",),
        "limits": Limits(),
    }
    return SandboxSpec(**{**values, **fields})  # type: ignore[arg-type]


def options(given: SandboxSpec) -> tuple[list[str], Descriptors]:
    descriptors = Descriptors(64)
    place = lambda path: Path(f"/n{path}")  # noqa: E731
    return build(given, SYSTEM, [Path("/opt/base/python")], place, descriptors, b"shell", b"filter"), descriptors


def test_golden() -> None:
    words, descriptors = options(spec())
    assert words == GOLDEN.split()
    assert descriptors.contents[69] == b"text"
    assert (descriptors.contents[70], descriptors.contents[71]) == (b"shell", b"filter")


def test_overlays_come_after_everything_that_is_mounted() -> None:
    words, _ = options(spec())
    last = max(
        index for index, word in enumerate(words) if word in ("--ro-bind", "--tmpfs", "--file", "--dir", "--remount-ro")
    )
    assert last < words.index("--overlay-src")


def test_network_of_the_host_is_asked_for() -> None:
    assert "--unshare-net" not in options(spec(network="host"))[0]


def test_mount_options_are_counted_in_bytes() -> None:
    assert escaped_length(Path("/a,b:c\\é")) == len("/a,b:c\\é".encode()) + 3
    long = tuple(Path(f"/layers/{number:0100}") for number in range(37))
    with pytest.raises(CannotIsolate, match="37 layers need"):
        options(spec(overlays=(Overlay("/app", long, Path("/u/upper"), Path("/u/work")),)))
