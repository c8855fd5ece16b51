"""Diff where the model-based test does not go: depth, size, attributes that mean something, many layers."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sandbox import diff as module
from sandbox.diff import Change, diff
from sandbox.errors import SandboxFailed, UnsafePath
from sandbox.host import Host
from sandbox.layers import flatten, freeze, materialise, read_layered
from sandbox.spec import Overlay

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]


def kinds(lowers: Sequence[Path], upper: Path) -> dict[str, tuple[str, ...]]:
    return {change.path: (change.kind, *change.also) for change in diff(lowers, upper)}


def test_trees_of_any_sane_depth(host: Host, inside: Callable, overlay: Callable, tmp_path: Path) -> None:
    """Deeper than a system call's longest path, and than Python's stack; read, copied, compared and removed."""
    app: Overlay = overlay("/app", {"d/top": "t"})
    nest = "import os\nos.chdir('d')\nfor _ in range(1500): os.mkdir('deeper'); os.chdir('deeper')\n"
    outcome, text = inside(nest + "open('f', 'w').write('x')", python=True, workdir="/app", overlays=(app,))
    assert (outcome.exit_code, text) == (0, "")
    changes = list(diff(app.lowers, app.upper))
    assert len(changes) == 1501 and changes[-1] == Change("d" + "/deeper" * 1500 + "/f", "added", False, 1)
    assert read_layered(app.lowers, app.upper, changes[-1].path, 10) == b"x"
    materialise(app.lowers, app.upper, tmp_path / "copy")
    assert [change.kind for change in diff((tmp_path / "copy",), app.upper)] == []
    for path in (tmp_path / "copy", app.upper.parent):
        host.remove(path)
    assert len(os.listdir("/proc/self/fd")) < 200  # noqa: PTH208


def test_paths_beyond_reason_are_refused(host: Host, inside: Callable, overlay: Callable, tmp_path: Path) -> None:
    app: Overlay = overlay("/app")
    nest = "import os\nfor _ in range(400): os.mkdir('d' * 200); os.chdir('d' * 200)"
    assert inside(nest, python=True, workdir="/app", overlays=(app,))[0].exit_code == 0
    with pytest.raises(UnsafePath, match="64 kB"):
        list(diff(app.lowers, app.upper))
    with pytest.raises(UnsafePath, match="64 kB"):
        materialise(app.lowers, app.upper, tmp_path / "copy")
    host.remove(app.upper.parent)
    host.remove(tmp_path / "copy")


def test_names_that_add_up_are_refused(inside: Callable, overlay: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    app: Overlay = overlay("/app")
    inside("for i in 1 2 3 4 5 6; do : > a-long-name-$i; done", workdir="/app", overlays=(app,))
    monkeypatch.setattr(module, "MAX_TEXT", 50)
    with pytest.raises(UnsafePath, match="too long to be listed"):
        list(diff(app.lowers, app.upper))


def test_closed_directories_are_closed_again_in_every_case(inside: Callable, overlay: Callable) -> None:
    app: Overlay = overlay("/app", {"a/b/c": "old", "a/z": "z"})
    script = "echo new > a/b/c; setfattr -n user.k -v v a/b 2>/dev/null; chmod 000 a/b/c a/b a; mkdir x; chmod 0 x"
    assert inside(script, workdir="/app", overlays=(app,))[0].exit_code == 0
    walk = diff(app.lowers, app.upper)
    assert next(walk).path == "a"
    assert next(walk).path == "a/b"
    walk.close()  # type: ignore[attr-defined]  # the reader goes away in the middle
    assert [stat.S_IMODE((app.upper / name).lstat().st_mode) for name in ("a", "x")] == [0, 0]
    assert kinds(app.lowers, app.upper)["a/b/c"] == ("modified", "mode")
    (app.upper / "a").chmod(0o700)
    assert stat.S_IMODE((app.upper / "a/b").lstat().st_mode) == 0


def test_attributes_that_an_instance_forged_mean_nothing(
    host: Host, inside: Callable, overlay: Callable, tmp_path: Path
) -> None:
    """Named like the overlay's own, they hide nothing, in the diff and in the next sandbox."""
    app: Overlay = overlay("/app", {"dir/kept": "k"})
    script = (
        "import os\n"
        "for key, value in (('opaque', b'y'), ('redirect', b'/etc'), ('metacopy', b''), ('whiteout', b'y')):\n"
        "    for path in ('dir', 'new'):\n"
        "        os.makedirs(path, exist_ok=True)\n"
        "        try: os.setxattr(path, 'user.overlay.' + key, value)\n"
        "        except OSError: pass\n"
        "open('new/file', 'w').close()"
    )
    assert inside(script, python=True, workdir="/app", overlays=(app,))[0].exit_code == 0
    found = kinds(app.lowers, app.upper)
    assert found.pop("dir", ("xattr",)) == ("xattr",)  # refused by older kernels
    assert found == {"new": ("added",), "new/file": ("added",)}
    freeze(host, app.upper, tmp_path / "layer")
    again: Overlay = overlay("/app", lowers=(*app.lowers, tmp_path / "layer"))
    assert inside("cat dir/kept; ls new", workdir="/app", overlays=(again,))[1] == "kfile\n"


def test_sparse_files_are_compared_by_their_data(tmp_path: Path) -> None:
    for name, tail in (("lower", b"old"), ("upper", b"new")):
        (tmp_path / name).mkdir()
        for file in ("same", "different"):
            with open(tmp_path / name / file, "wb") as sparse:
                sparse.truncate(1 << 40)
                sparse.seek(1 << 39)
                sparse.write(tail if file == "different" else b"end")
    with open(tmp_path / "upper" / "same", "r+b") as sparse:
        sparse.write(bytes(1 << 16))  # zeros where the other has a hole
    assert kinds((tmp_path / "lower",), tmp_path / "upper") == {"different": ("modified",)}


@pytest.fixture
def short(host: Host) -> Iterator[Path]:
    """A directory with a short path: the kernel takes 4 kB of mount options, and pytest's paths are long."""
    place = Path(tempfile.mkdtemp(prefix="l"))
    yield place
    host.remove(place)


def test_fifty_layers(host: Host, inside: Callable, overlay: Callable, short: Path, tmp_path: Path) -> None:
    """Stacked, compared, joined into one that looks the same."""
    lowers = []
    for number in range(50):
        layer = short / f"{number}"
        layer.mkdir()
        (layer / f"own{number}").write_text("x")
        (layer / "common").write_text(f"{number}")
        lowers.append(layer)
        host.own(layer)
    app: Overlay = overlay("/app", lowers=tuple(lowers))
    outcome, text = inside("ls | wc -l; cat common; rm own7; echo new > own8", workdir="/app", overlays=(app,))
    assert (outcome.exit_code, text.split()) == (0, ["51", "49"])
    assert kinds(app.lowers, app.upper) == {"own7": ("deleted",), "own8": ("modified",)}
    freeze(host, app.upper, tmp_path / "last")
    flatten(host, (*lowers, tmp_path / "last"), tmp_path / "flat")
    assert sorted(path.name for path in (tmp_path / "flat").iterdir()) == sorted(
        ["common", *(f"own{n}" for n in range(50) if n != 7)]
    )
    again: Overlay = overlay("/app", lowers=(tmp_path / "flat",))
    assert inside("cat common own8; echo y > own9", workdir="/app", overlays=(again,))[1] == "49new\n"
    assert not (tmp_path / ".flat.part").exists()


def test_flattening_keeps_what_instances_see(host: Host, inside: Callable, overlay: Callable, tmp_path: Path) -> None:
    app: Overlay = overlay("/app", {"file": "f"})
    script = (
        "import os\nos.mkfifo('fifo', 0o640); os.mkdir('closed'); open('closed/in', 'w').close()\n"
        "os.setxattr('file', 'user.note', b'n'); os.chmod('closed', 0); os.mkdir('sticky'); os.chmod('sticky', 0o1777)"
    )
    assert inside(script, python=True, workdir="/app", overlays=(app,))[0].exit_code == 0
    flatten(host, (*app.lowers, app.upper), tmp_path / "flat")
    again: Overlay = overlay("/app", lowers=(tmp_path / "flat",))
    look = "import os\nprint(*(f'{n}:{os.lstat(n).st_mode:o}:{os.lstat(n).st_uid}' for n in sorted(os.listdir('.'))))\n"
    _, text = inside(look + "print(os.getxattr('file', 'user.note'))", python=True, workdir="/app", overlays=(again,))
    assert text == "closed:40000:1000 fifo:10640:1000 file:100644:1000 sticky:41777:1000\nb'n'\n"
    with pytest.raises(SandboxFailed, match="larger than allowed"):
        (tmp_path / "big").mkdir()
        (tmp_path / "big" / "f").write_bytes(bytes(1 << 20))
        flatten(host, (tmp_path / "big",), tmp_path / "too-big", max_bytes=1 << 16)
    assert not (tmp_path / "too-big").exists() and not (tmp_path / ".too-big.part").exists()


def test_many_files_cost_little_more_than_looking_at_them(tmp_path: Path) -> None:
    """Against walk + lstat of the same tree; the figure for 200,000 is in benchmarks/layers.py."""
    for directory in range(16):
        (tmp_path / "upper" / f"d{directory}").mkdir(parents=True)
        for number in range(250):
            os.close(os.open(tmp_path / "upper" / f"d{directory}" / f"f{number}", os.O_CREAT | os.O_WRONLY))
    (tmp_path / "lower" / "d1").mkdir(parents=True)

    def look() -> int:
        return sum(1 for top, _, files in os.walk(tmp_path / "upper") for name in files if os.lstat(f"{top}/{name}"))

    times: dict[str, list[float]] = {"walk": [], "diff": []}
    for _ in range(6):
        start = time.process_time()
        assert look() == 4000
        middle = time.process_time()
        assert sum(1 for _ in diff((tmp_path / "lower",), tmp_path / "upper")) == 4000 + 15
        times["walk"].append(middle - start)
        times["diff"].append(time.process_time() - middle)
    assert min(times["diff"]) < 12 * min(times["walk"])
