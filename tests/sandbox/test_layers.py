"""Diff, freezing, copying out and removing what an instance wrote, against real overlays."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sandbox.diff import diff
from sandbox.errors import SandboxFailed, UnsafePath
from sandbox.host import Host
from sandbox.layers import flatten, freeze, materialise, read_layered
from sandbox.spec import Overlay

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]

FILES = {"keep": "k", "change": "old", "gone": "g", "mode": "m", "dir/a": "a", "dir/b": "b", "old/x": "x", "swap": "s"}
SCRIPT = """
echo new > change; rm gone; chmod 700 mode; touch keep; cat keep >> keep.tmp; rm keep.tmp
rm -r old; mkdir old; echo y > old/y; rm swap; mkdir swap; echo in > swap/in
ln -s change link; mkfifo fifo; mkdir -p new/deep; echo d > new/deep/d; rm dir/a; rmdir nothing 2>/dev/null
chmod 755 dir/b; chmod 644 dir/b; printf old > same; mkdir closed; echo h > closed/h; chmod 000 closed
printf 'x' > "$(printf 'b\\377d')"
"""


def changes(lowers: Sequence[Path], upper: Path) -> dict[str, str]:
    return {change.path: change.kind for change in diff(lowers, upper)}


@pytest.fixture
def written(inside: Callable, overlay: Callable) -> Overlay:
    app: Overlay = overlay("/app", FILES)
    outcome, text = inside(SCRIPT, workdir="/app", overlays=(app,))
    assert (outcome.exit_code, text) == (0, "")
    return app


def test_diff_names_every_change_and_nothing_else(written: Overlay) -> None:
    assert changes(written.lowers, written.upper) == {
        "change": "modified",
        "gone": "deleted",
        "mode": "mode",
        "old/x": "deleted",
        "old/y": "added",
        "swap": "type",
        "swap/in": "added",
        "link": "added",
        "fifo": "added",
        "new": "added",
        "new/deep": "added",
        "new/deep/d": "added",
        "dir/a": "deleted",
        "same": "added",
        "closed": "added",
        "closed/h": "added",
        "b\udcffd": "added",
    }
    assert stat.S_IMODE((written.upper / "closed").lstat().st_mode) == 0  # looked into, and closed again


def test_layers_stack(host: Host, written: Overlay, inside: Callable, overlay: Callable, tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    freeze(host, written.upper, layer)
    assert not written.upper.parent.exists()
    again: Overlay = overlay("/app", lowers=(*written.lowers, layer))
    script = "ls | sort | tr '\\n' ' '; cat change old/y swap/in; echo more > gone; rm new/deep/d; echo new > change"
    outcome, text = inside(script, workdir="/app", overlays=(again,))
    assert outcome.exit_code == 0
    assert text.startswith("b") and "gone" not in text and text.endswith("new\ny\nin\n")
    assert changes(again.lowers, again.upper) == {"gone": "added", "new/deep/d": "deleted"}
    assert read_layered(again.lowers, again.upper, "change", 100) == b"new\n"
    assert read_layered(again.lowers, again.upper, "swap/in", 100) == b"in\n"
    assert read_layered(again.lowers, None, "dir/b", 1) == b"b"
    for missing in ("old/x", "new/deep/d", "dir/a", "nothing"):
        with pytest.raises(FileNotFoundError):
            read_layered(again.lowers, again.upper, missing, 100)
    for unsafe in ("link", "fifo", "../x", "swap/in/more", "new"):
        with pytest.raises(UnsafePath):
            read_layered(again.lowers, again.upper, unsafe, 100)


def test_materialise_copies_the_merged_tree(written: Overlay, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    materialise(written.lowers, written.upper, copy)
    assert (copy / "change").read_text() == "new\n"
    assert sorted(path.name for path in (copy / "old").iterdir()) == ["y"]
    assert (copy / "link").readlink() == Path("change")
    assert not (copy / "gone").exists() and not (copy / "fifo").exists()
    with pytest.raises(SandboxFailed, match="larger"):
        materialise(written.lowers, written.upper, tmp_path / "small", max_bytes=4096)


def test_holes_stay_holes(tmp_path: Path) -> None:
    (tmp_path / "lower").mkdir()
    with open(tmp_path / "lower" / "sparse", "wb") as file:
        file.seek(1 << 34)
        file.write(b"end")
    materialise((tmp_path / "lower",), None, tmp_path / "copy", max_bytes=1 << 20)
    found = (tmp_path / "copy" / "sparse").stat()
    assert found.st_size == (1 << 34) + 3 and found.st_blocks < 100


def test_removing_bears_everything(host: Host, inside: Callable, overlay: Callable) -> None:
    app: Overlay = overlay("/app")
    script = """
import os
os.makedirs("a/b/c"); open("a/b/c/f", "w").close(); os.chmod("a/b/c/f", 0); os.chmod("a/b/c", 0); os.chmod("a", 0)
os.mkfifo("fifo"); os.symlink("/", "link"); os.mkdir("deep"); os.chdir("deep")
for _ in range(1500):
    os.mkdir("d" * 200); os.chdir("d" * 200)
"""
    outcome, text = inside(script, python=True, workdir="/app", overlays=(app,))
    assert (outcome.exit_code, text) == (0, "")
    with pytest.raises(UnsafePath):
        list(diff(app.lowers, app.upper))
    host.remove(app.upper.parent)
    assert not app.upper.parent.exists()
    host.remove(app.upper.parent)


def test_owning_does_not_follow_symlinks(host: Host, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d" / "link").symlink_to(outside)
    host.own(tree)
    assert outside.stat().st_uid == os.geteuid()
    assert (tree / "d").stat().st_uid == host.uid


def test_lending_shows_files_as_the_sandboxs_own(
    host: Host, inside: Callable, overlay: Callable, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("x")
    (mine / "file").chmod(0o600)
    host.lend(mine)
    app: Overlay = overlay("/app", lowers=(mine,))
    outcome, text = inside("stat -c %u file; cat file; echo y > file", workdir="/app", overlays=(app,))
    assert (outcome.exit_code, text) == (0, "1000\nx")
    assert (mine / "file").read_text() == "x"
    assert changes((mine,), app.upper) == {"file": "modified"}


def test_layers_nested_deeper_than_pythons_stack_are_joined(host: Host, tmp_path: Path) -> None:
    """Main may nest its data like that; a supervisor that could not join them would never start again."""
    depth, upper = 1500, tmp_path / "upper"
    upper.mkdir()
    here = os.open(upper, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    flatten(host, (upper,), tmp_path / "joined")
    found = os.open(tmp_path / "joined", os.O_RDONLY)
    for _ in range(depth):
        inner = os.open("d", os.O_RDONLY, dir_fd=found)
        os.close(found)
        found = inner
        assert os.fstat(found).st_uid == host.uid
    os.close(found)
    for path in (upper, tmp_path / "joined"):
        host.remove(path)
