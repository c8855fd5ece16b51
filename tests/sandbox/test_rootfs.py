"""Another system as the base of a sandbox: a debootstrapped one, and small ones that mean harm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import arguments
from sandbox.errors import CannotIsolate
from sandbox.host import Host
from sandbox.process import Outcome
from sandbox.rootfs import Base, look
from sandbox.spec import Bind, Overlay, SandboxSpec
from tests.image import image as image
from tests.image import own_python as own_python

Inside = Callable[..., tuple[Outcome, str]]
both_modes = [pytest.mark.sandbox, pytest.mark.usefixtures("mode"), pytest.mark.timeout(1000)]


class TestDebian:
    """With a real one."""

    pytestmark = both_modes

    def test_it_is_the_system_inside(self, inside: Inside, image: Path) -> None:
        script = """
. /etc/os-release && echo $VERSION_CODENAME
dpkg-query -W -f '${Package}\\n' base-files
/opt/tool/run
cat /app/deep/image.txt
whoami; getent passwd imageuser | cut -d: -f1,3; getent passwd 0 | cut -d: -f1
cat /etc/resolv.conf; grep -c localhost /etc/hosts
ls -d /usr/lib/python3* 2>/dev/null || echo no python
readlink /bin /srv/out
test -e /.dockerenv -o -e /sys/kernel && echo sys || echo no sys
"""
        outcome, text = inside(script, workdir="/app", rootfs=image)
        assert outcome.exit_code == 0, text
        assert text.splitlines() == [
            "bookworm", "base-files", "a tool of the image", "from the image", "agent", "imageuser:1500", "root",
            "2", "no python", "usr/bin", "../../../../../../etc", "no sys",
        ]  # fmt: skip

    def test_nothing_of_it_can_be_written_or_uncovered(self, inside: Inside, image: Path) -> None:
        before = sorted(path.name for path in (image / "etc").iterdir())
        script = """
for place in / /usr /usr/bin /etc /etc/apt /opt /opt/tool /app /srv/out /var/tmp /var/lib /root /home /media; do
    touch $place/new 2>/dev/null && echo "wrote $place"
done
echo x >> /etc/passwd || true; rm -f /app/deep/image.txt; chmod 777 /opt/tool/run; mount -o remount,rw / && echo mounted
cat /etc/shadow /etc/gshadow; ls /root/* /oldroot; ls /home
for f in $(find / -xdev -perm -4000 2>/dev/null | head -3); do echo setuid; done; su -c id root < /dev/null
"""
        _, text = inside(script + "exit 0", workdir="/", rootfs=image)
        assert "wrote" not in text and "mounted" not in text and "uid=0" not in text and "root:" not in text
        assert sorted(path.name for path in (image / "etc").iterdir()) == before
        assert (image / "app/deep/image.txt").read_text() == "from the image\n"

    def test_etc_is_one_mount_where_nothing_lies_below_it(self, inside: Inside, image: Path, tmp_path: Path) -> None:
        (tmp_path / "shown").mkdir(mode=0o755)
        (tmp_path / "shown/file").write_text("ours\n")
        script = "grep -c ' /etc' /proc/self/mountinfo; whoami; ls /etc | wc -l; cat /etc/debian_version /etc/ours/file"
        _, text = inside(script, rootfs=image)
        mounts, name, entries, version, _ = text.splitlines()
        assert (mounts, name) == ("1", "agent") and int(entries) > 30 and version.startswith("12")
        _, text = inside(script, rootfs=image, binds=(Bind(tmp_path / "shown", "/etc/ours"),))
        assert int(text.splitlines()[0]) > 10
        assert text.splitlines()[1:] == ["agent", str(int(entries) + 1), version, "ours"]

    def test_ours_is_mounted_beside_theirs(
        self, inside: Inside, image: Path, overlay: Callable[..., Overlay], tmp_path: Path
    ) -> None:
        (tmp_path / "shown").mkdir(mode=0o755)
        (tmp_path / "shown/file").write_text("ours\n")
        work, data = overlay("/srv/data", {"old": "old\n"}), overlay("/root/data")
        script = """
cat old; echo new > old; echo d > /root/data/d
ls /opt /srv; cat /opt/ours/file /usr/local/x/y; ls /usr/local
"""
        outcome, text = inside(
            script,
            workdir="/srv/data",
            rootfs=image,
            overlays=(work, data),
            binds=(Bind(tmp_path / "shown", "/opt/ours"),),
            files={"/usr/local/x/y": b"made\n"},
        )
        assert outcome.exit_code == 0, text
        lines = text.split()
        assert lines[:7] == ["old", "/opt:", "ours", "tool", "/srv:", "data", "out"]
        assert lines[7:9] == ["ours", "made"] and {"bin", "x", "share"} <= set(lines[9:])
        assert (work.upper / "old").read_text() == "new\n" and (data.upper / "d").read_text() == "d\n"

    @pytest.mark.usefixtures("own_python")
    def test_our_interpreter_runs_with_its_libraries(self, inside: Inside, image: Path) -> None:
        script = (
            "import sys, json, subprocess, lxml.etree, psutil; print(sys.prefix, open('/etc/hostname').read() != '')"
        )
        outcome, text = inside(script, python=True, rootfs=image)
        assert (outcome.exit_code, text) == (0, f"{sys.prefix} True\n")

    @pytest.mark.usefixtures("own_python")
    def test_with_an_allow_list(self, inside: Inside, image: Path) -> None:
        script = """
import socket, urllib.request, urllib.error
try:
    urllib.request.urlopen("http://evil.test/")
except urllib.error.HTTPError as error:
    print(error.code)
"""
        outcome, text = inside(script, python=True, rootfs=image, network=("good.test:80",))
        assert (outcome.exit_code, text) == (0, "403\n")
        assert [c.host for c in outcome.connections] == ["evil.test"]

    def test_the_command_line_takes_it(self, image: Path, tmp_path: Path) -> None:
        words = [
            sys.executable,
            "-m",
            "orchestrator",
            "sandbox",
            "run",
            "--rootfs",
            str(image),
            "--",
            "cat",
            "/etc/debian_version",
        ]
        root = Path(__file__).resolve().parents[2]
        found = subprocess.run(
            words, cwd=tmp_path, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": str(root)}
        )
        assert found.stdout == (image / "etc/debian_version").read_bytes(), found.stderr


@pytest.fixture
def small(tmp_path: Path, host: Host) -> Path:
    """A root file system of one static program: pid 1's own, which needs nothing."""
    root = tmp_path / "small"
    for name in ("usr/bin", "etc", "opt", "srv"):
        (root / name).mkdir(parents=True)
    (root / "usr/bin/true").write_bytes(host.pid1)
    (root / "usr/bin/true").chmod(0o755)
    return root


@pytest.mark.sandbox
@pytest.mark.usefixtures("mode")
class TestHostileLinks:
    """Whatever an image links to, nothing outside is created, changed or shown."""

    def test_links_where_we_mount(
        self, inside: Inside, small: Path, tmp_path: Path, overlay: Callable[..., Overlay]
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir(mode=0o777)
        outside.chmod(0o777)
        for name in (
            "root",
            "home",
            "opt/agent",
            "etc/passwd",
            "etc/hosts",
            "tmp",
            "run",
            "dev",
            "app",
            "srv/place",
            "runner",
        ):
            path = small / name
            path.symlink_to(Path("/oldroot") / str(outside).lstrip("/"))
        shutil.rmtree(small / "srv")
        (small / "srv").symlink_to(f"/oldroot{outside}")
        (tmp_path / "file").write_text("x")
        outcome, text = inside(
            "",
            command=("/usr/bin/true",),
            workdir="/app",
            rootfs=small,
            overlays=(overlay("/app"), overlay("/srv/place")),
            binds=(Bind(tmp_path / "file", "/opt/agent/file"),),
            directories=("/root/data", "/srv/made"),
        )
        assert outcome.setup_error is None, text
        assert list(outside.iterdir()) == []

    def test_a_link_as_workdir_is_no_directory(self, inside: Inside, small: Path, tmp_path: Path) -> None:
        (small / "work").symlink_to(f"/oldroot{tmp_path}")
        outcome, _ = inside("", command=("/usr/bin/true",), workdir="/work", rootfs=small)
        assert outcome.setup_error is None  # an empty one of ours took its place

    def test_special_files_and_closed_directories(self, inside: Inside, small: Path) -> None:
        os.mkfifo(small / "etc/fifo")
        os.mkfifo(small / "fifo")
        (small / "closed").mkdir(mode=0o000)
        outcome, text = inside("", command=("/usr/bin/true",), workdir="/tmp", rootfs=small)
        (small / "closed").chmod(0o755)
        assert outcome.setup_error is None, text


def test_golden(tmp_path: Path) -> None:
    for name in ("usr/bin", "etc", "opt/tool", "var/lib", "tmp", "app"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/zsh\nfive:x:5:5::/:/bin/sh\nother:x:1000:1::/:\nbroken\n")
    (tmp_path / "etc/os-release").write_text("ID=test\n")
    base = Base(tmp_path, os.getuid(), os.getgid())
    words = base.options(
        ["/etc/passwd", "/opt/agent", "/root/data", "/home/agent", "/app", "/usr/local/a/b"], lambda path: Path("/n")
    )
    expected = """
--symlink usr/bin /bin --ro-bind /n/var /var --dir /etc --ro-bind /n/etc/os-release /etc/os-release
--dir /home --dir /opt --ro-bind /n/opt/tool /opt/tool --dir /root --dir /usr --ro-bind /n/usr/bin /usr/bin
--dir /usr/local --dir /usr/local/a
"""
    assert words == expected.split()
    files = base.etc_files(arguments.etc_files("instance", "none"))
    names = [line.split(b":")[0] for line in files["/etc/passwd"].splitlines()]
    assert names == [b"root", b"agent", b"nobody", b"five"]
    assert files["/etc/resolv.conf"] == b""


@pytest.mark.bad_input
def test_bad_input_rootfs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for path, what in (
        (tmp_path / "missing", "can't be read"),
        (tmp_path / "file", "can't be read"),
        (tmp_path / "empty", "has no usr"),
        (Path("/"), "the host's own root"),
    ):
        with pytest.raises(CannotIsolate, match=what) as caught:
            look(path, 1, 1)
        print(caught.value.render())
    assert SandboxSpec(("true",), "/").rootfs is None
