"""Layers that an instance wrote are mounted again, in several places: nothing in them leads out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.host import Host

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]

# Names that a launch creates or mounts, and what an instance may plant there.
NAMES = "tmp run etc root data proc dev app home usr bin lib sys opt runner old .git upper work"
TARGETS = ("{victim}", "/oldroot{victim}", "/newroot{victim}", "../../../../../../../..{victim}", "/proc/self/cwd/..")
SCRIPT = "for n in {names}; do ln -s {target} $n; mkdir -p deep/$n; ln -s {target} deep/$n/x; done"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A host directory that anybody may write."""
    made = tmp_path / "victim"
    made.mkdir()
    made.chmod(0o777)
    (made / "file").write_text("untouched")
    (made / "file").chmod(0o666)
    return made


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dest", ["/app", "/root/data", "/work/a/b"])
def test_planted_symlinks(inside: Callable, overlay: Callable, victim: Path, target: str, dest: str) -> None:
    """CVE-2026-87766 and its relatives: two layers deep, in several places, with every parent that bwrap makes."""
    first = overlay(dest)
    script = SCRIPT.format(names=NAMES, target=target.format(victim=victim))
    assert inside(script, workdir=dest, overlays=(first,))[0].exit_code == 0
    second = overlay(dest, lowers=(*first.lowers, first.upper))
    assert inside("touch more", workdir=dest, overlays=(second,))[0].exit_code == 0
    again = overlay(dest, lowers=(*first.lowers, first.upper, second.upper))
    binds = {"directories": (f"/opt{dest}",), "files": {"/etc/extra": b"x"}}
    outcome, _ = inside("ls tmp/; echo x > tmp/x; echo y > deep/etc/x/y", workdir=dest, overlays=(again,), **binds)
    assert outcome.setup_error is None
    assert [path.name for path in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == "untouched"


@pytest.mark.parametrize("name", ["link", "link/below"])
def test_a_working_directory_that_is_a_link(inside: Callable, overlay: Callable, victim: Path, name: str) -> None:
    app = overlay()
    (app.upper / "link").symlink_to(f"/oldroot{victim}")
    outcome, text = inside("pwd -P; ls", workdir=f"/app/{name}", overlays=(app,))
    assert "file" not in text
    assert outcome.exit_code != 0 or outcome.setup_error


FORGED = {
    "redirect": b"/../../../../../etc",
    "opaque": b"y",
    "origin": b"\0\xfb\x21\0",
    "metacopy": b"",
    "whiteout": b"y",
    "nlink": b"U+5",
    "protattr": b"i",
}


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("where", ["top", "directory", "file"])
def test_forged_attributes(
    inside: Callable, overlay: Callable, host: Host, victim: Path, name: str, where: str
) -> None:
    """As an instance on a kernel that does not escape them could write them: no file of the host appears."""
    app = overlay("/app", {"kept": "kept"})
    target = app.upper if where == "top" else app.upper / "forged"
    if where == "directory":
        target.mkdir()
    elif where == "file":
        target.write_text("own")
    value = FORGED[name] if name != "redirect" else f"/../../../../../..{victim}".encode()
    os.setxattr(target, f"user.overlay.{name}", value)
    host.own(app.upper)
    again = overlay("/app", lowers=(*app.lowers, app.upper))
    outcome, text = inside("cat forged/file forged; ls -la . forged; echo end", workdir="/app", overlays=(again,))
    assert "untouched" not in text
    assert outcome.setup_error is None and text.rstrip().endswith("end")


def test_setuid_files_of_a_layer_give_nothing(inside: Callable, overlay: Callable) -> None:
    first = overlay()
    assert inside("cp /usr/bin/id i; chmod 6755 i", workdir="/app", overlays=(first,))[0].exit_code == 0
    again = overlay("/app", lowers=(*first.lowers, first.upper))
    _, text = inside("./i -u; ./i -g; grep CapEff /proc/self/status", workdir="/app", overlays=(again,))
    assert text.split() == ["1000", "1000", "CapEff:", "0" * 16]
