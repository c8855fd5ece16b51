"""Uppers in memory: full where a disk would be watched, readable afterwards, and gone when their owner is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandbox import orphans, usage
from sandbox.diff import diff
from sandbox.doctor import PROBE
from sandbox.errors import CannotIsolate, SandboxFailed
from sandbox.host import Host
from sandbox.layers import freeze, read_layered
from sandbox.memory import Watchdog
from sandbox.process import Sandbox
from sandbox.selftest import CALLS
from sandbox.spec import Limits, Overlay, SandboxSpec
from tests.sandbox.test_layers import FILES, SCRIPT

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]

ROOT = Path(__file__).resolve().parents[2]
MEMORY = Limits(upper="memory", disk_mb=8, inodes=300, seconds=40)
Make = Callable[..., Overlay]


@dataclass
class Made:
    """Ramdisks of one test."""

    host: Host
    directory: Path

    def __call__(self, files: dict[str, str] | None = None, limits: Limits = MEMORY, *lowers: Path) -> Overlay:
        """A fresh overlay in a fresh ramdisk."""
        number = len(list(self.directory.iterdir()))
        lower = self.directory / f"lower{number}"
        lower.mkdir()
        for name, text in (files or {}).items():
            (lower / name).parent.mkdir(parents=True, exist_ok=True)
            (lower / name).write_text(text)
        self.host.own(lower)
        ramdisk = self.host.space(self.directory / f"ramdisk{number}", limits)
        return Overlay("/app", (lower, *lowers), *self.host.make_upper(ramdisk, "0"))


@pytest.fixture
def ramdisk(host: Host, tmp_path: Path) -> Iterator[Made]:
    directory = tmp_path / "ramdisks"
    directory.mkdir()
    yield Made(host, directory)
    host.remove(directory)


def changes(overlay: Overlay) -> dict[str, str]:
    return {change.path: change.kind for change in diff(overlay.lowers, overlay.upper)}


BOMBS = {
    "one file": ("disk", "f = open('f', 'wb')\nwhile True: os.write(f.fileno(), block)"),
    "many files": ("disk", "for n in range(99): open(f'f{n}', 'wb').write(block)"),
    "deleted but open": ("disk", "f = open('f', 'wb'); os.unlink('f')\nwhile True: os.write(f.fileno(), block)"),
    "mapped": (
        "disk",
        "import mmap; f = open('f', 'w+b'); f.truncate(1 << 26); m = mmap.mmap(f.fileno(), 0)\nwhile m.write(block): 1",
    ),
    "sparse, filled": ("disk", "f = open('f', 'wb')\nfor n in range(99): f.seek(n << 24); f.write(block); f.flush()"),
    "inodes": ("inodes", "for n in range(1_000_000): os.close(os.open(f'f{n}', os.O_CREAT))"),
    "directories": ("inodes", "for n in range(1_000_000): os.mkdir(f'd{n}')"),
    "links": ("inodes", "open('f', 'w')\nfor n in range(1_000_000): os.link('f', f'l{n}')"),
    "attributes": (
        "inodes",
        "for n in range(9_000): open(f'f{n // 50}', 'w'); os.setxattr(f'f{n // 50}', f'user.{n}', bytes(999))",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_gets_enospc_and_the_limits_name(inside: Callable, ramdisk: Made, name: str) -> None:
    """It is told so inside, and ended at the next look, even where it would go on."""
    limit, bomb = BOMBS[name]
    indented = "\n    ".join(bomb.splitlines())
    script = (
        f"import os, time\nblock = bytes(1 << 20)\ntry:\n    {indented}\n"
        "except OSError as e: print(e.errno, flush=True)\ntime.sleep(60)"
    )
    overlay = ramdisk()
    outcome, text = inside(script, python=True, workdir="/app", overlays=(overlay,), limits=MEMORY)
    assert outcome.limit == limit
    assert text in (("", "28\n") if name == "mapped" else ("28\n",))
    assert outcome.seconds < 20
    if name != "deleted but open":
        assert changes(overlay)


def test_the_bound_is_of_all_uppers_together(inside: Callable, host: Host, ramdisk: Made) -> None:
    first = ramdisk()
    second = replace(first, dest="/more", upper=(more := host.make_upper(first.upper.parents[1], "1"))[0], work=more[1])
    script = "head -c 5000000 /dev/zero > a; head -c 5000000 /dev/zero > /more/b; sleep 60"
    outcome, text = inside(script, workdir="/app", overlays=(first, second), limits=MEMORY)
    assert (outcome.limit, "No space left" in text) == ("disk", True)
    assert sum(path.stat().st_blocks for path in (first.upper / "a", second.upper / "b")) * 512 == 8 << 20


def test_what_is_sparse_or_deleted_in_time_is_no_bomb(inside: Callable, ramdisk: Made) -> None:
    script = "truncate -s 900M s; for i in 1 2 3 4; do head -c 5000000 /dev/zero > f; rm f; done; echo done"
    overlay = ramdisk()
    outcome, text = inside(script, workdir="/app", overlays=(overlay,), limits=MEMORY)
    assert (outcome.exit_code, outcome.limit, text) == (0, None, "done\n")
    assert changes(overlay) == {"s": "added"}


def test_a_copy_up_that_does_not_fit_fails_inside(inside: Callable, ramdisk: Made) -> None:
    overlay = ramdisk({"big": "x" * (9 << 20), "small": "y"})
    script = "echo more >> big || echo no; echo more >> small; cat small"
    outcome, text = inside(script, workdir="/app", overlays=(overlay,), limits=MEMORY)
    assert (outcome.exit_code, text.split("\n")[-3:-1]) == (0, ["no", "ymore"])
    assert changes(overlay) == {"small": "modified"}


def test_it_is_read_and_mounted_again_like_an_upper_on_disk(inside: Callable, overlay: Make, ramdisk: Made) -> None:
    disk = overlay("/app", FILES)
    memory = ramdisk(FILES)
    for each in (disk, memory):
        assert inside(SCRIPT, workdir="/app", overlays=(each,), limits=MEMORY)[1] == ""
    assert changes(memory) == changes(disk) != {}
    assert read_layered(memory.lowers, memory.upper, "old/y", 99) == b"y\n"
    look = "find . -printf '%y %m %p %l\\n' 2>&1 | sort; cat keep change old/y swap/in; echo z > dir/b; rm -r new"
    seen = []
    for written, on_disk in ((disk, True), (memory, True), (memory, False)):
        lowers = (*written.lowers, written.upper)
        again = overlay("/app", None, lowers=lowers) if on_disk else ramdisk({}, MEMORY, *lowers)
        outcome, text = inside(look, workdir="/app", overlays=(again,), limits=replace(MEMORY, upper="disk"))
        seen.append((outcome.exit_code, text, changes(again)))
    assert seen[0] == seen[1] == seen[2]


def test_freezing_copies_it_as_it_is(
    inside: Callable, host: Host, overlay: Make, ramdisk: Made, tmp_path: Path
) -> None:
    disk = overlay("/app", FILES)
    memory = ramdisk(FILES)
    for number, each in enumerate((disk, memory)):
        inside(SCRIPT, workdir="/app", overlays=(each,), limits=MEMORY)
        if number:
            inside("setfattr -n user.mine -v 1 keep", workdir="/app", overlays=(each,), limits=MEMORY)
        freeze(host, each.upper, tmp_path / f"frozen{number}")
        assert not each.upper.parent.exists()
    frozen = [replace(each, upper=tmp_path / f"frozen{number}") for number, each in enumerate((disk, memory))]
    assert changes(frozen[0]) == changes(frozen[1]) != {}
    with pytest.raises(SandboxFailed):
        freeze(host, ramdisk().upper, tmp_path / "frozen1")
    assert not list(tmp_path.glob(".*.part"))


def gone(pids: list[int], seconds: float) -> bool:
    """Whether these processes have ended, or do so in time."""
    deadline = time.monotonic() + seconds
    while any(Path(f"/proc/{pid}/ns/pid").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def mounts(pid: int | str = "self") -> int:
    return Path(f"/proc/{pid}/mounts").read_text().count("\n")


def test_twenty_launches_leave_nothing(host: Host, ramdisk: Made) -> None:
    def things() -> tuple[object, ...]:
        pids = (os.getpid(), host.launcher.pid)
        kept = [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]
        return kept, [mounts(pid) for pid in pids], len(usage.tree(os.getpid())), list(host.state.glob("ramdisks/*"))

    def launch() -> None:
        overlay = ramdisk()
        with Sandbox.start(host, SandboxSpec(("touch", "x"), "/app", overlays=(overlay,), limits=MEMORY)) as sandbox:
            assert sandbox.wait(60) is not None
        assert changes(overlay) == {"x": "added"}
        for path in (overlay.upper.parents[1], *overlay.lowers):
            host.remove(path)
            assert not os.path.lexists(path)

    launch()  # a user's namespaces stay
    before = things()
    for _ in range(20):
        launch()
    assert things() == before


OWNER = """
import os, sys
from pathlib import Path
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Limits, Overlay, SandboxSpec
top = Path(sys.argv[1])
with Host.detect(top) as host:
    (top / "lower").mkdir()
    host.own(top / "lower")
    limits = Limits(upper="memory", disk_mb=64, inodes=300)
    layers = top / "campaigns/c/trials/t/layers"
    overlay = Overlay("/app", (top / "lower",), *host.make_upper(host.space(layers, limits), "0"))
    script = "head -c 50000000 /dev/zero > x; echo full; sleep 600"
    spec = SandboxSpec(("sh", "-c", script), "/app", overlays=(overlay,), limits=limits)
    reading, writing = os.pipe()
    sandbox = Sandbox.start(host, spec, stdout=writing)
    os.read(reading, 9)
    print(host.launcher.pid, sandbox.pid, flush=True)
    sandbox.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_its_owner(tmp_path: Path, number: signal.Signals) -> None:
    before, held = mounts(), shared_memory()
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout
        pids = [int(word) for word in owner.stdout.readline().split()]
        layers = tmp_path / "campaigns/c/trials/t/layers"
        assert (layers / "0/upper/x").stat().st_size == 50_000_000, "another process of this user can look"
        owner.send_signal(number)
    assert gone(pids, 5)
    assert mounts() == before
    assert freed(held)
    assert os.path.lexists(layers) == (number == signal.SIGKILL)
    assert [orphan.what for orphan in orphans.look(tmp_path) if orphan.what.startswith(str(tmp_path))] == [
        str(layers) for _ in range(os.path.lexists(layers))
    ]
    Host.detect(tmp_path).close()
    assert not os.path.lexists(layers), "the next start clears it"


def test_a_link_of_a_dead_owner_is_cleared_whoever_has_its_number_now(tmp_path: Path) -> None:
    layers = tmp_path / "campaigns/c/trials/t/layers"
    layers.parent.mkdir(parents=True)
    layers.symlink_to("/proc/1/fd/0")
    assert [
        orphan.what for orphan in orphans.look(tmp_path) if orphan.kind == "layers"
    ] == []  # nobody knows this place
    Host.detect(tmp_path).close()
    assert not os.path.lexists(layers)
    layers.symlink_to("/proc/1/fd/0")
    assert [orphan.what for orphan in orphans.look(tmp_path) if orphan.kind == "layers"] == [str(layers)]
    with Host.detect(tmp_path / "other") as host:
        assert host.space(layers, MEMORY).readlink().parts[2] == str(os.getpid())
    assert not os.path.lexists(layers)


def test_owners_killed_right_after_a_launch(tmp_path: Path) -> None:
    """While a ramdisk is being made, or a sandbox started in it. Neither a process nor memory is left."""
    held = shared_memory()
    words = [sys.executable, "-m", "tests.sandbox.nursery", str(tmp_path), "24", "8", "2", "memory"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["rounds"], found["survivors"]) == (24, 0)
    assert freed(held)
    assert not list(tmp_path.glob("*/ramdisks/*"))


def freed(held: int) -> bool:
    """Whether no more memory is shared than before; others, who use it too, give it back in a while."""
    deadline = time.monotonic() + 30
    while shared_memory() > held + 40_000:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def shared_memory() -> int:
    """kB of all tmpfs and memory files of this machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Shmem:"))


def test_the_owner_of_a_ramdisk_dies_with_a_half_made_one(host: Host, tmp_path: Path) -> None:
    """The spawner has gone: the refusal says so, and what was written can still be read."""
    ramdisk = Made(host, tmp_path)
    overlay = ramdisk()
    (overlay.upper / "evidence").write_text("x")
    os.kill(host.launcher.pid, signal.SIGKILL)
    with pytest.raises(CannotIsolate, match="spawner"):
        ramdisk()
    assert (overlay.upper / "evidence").read_text() == "x"
    host.remove(overlay.upper.parents[1])
    assert not overlay.upper.exists()


@pytest.mark.parametrize("enforcer", ["best", "watchdog"])
def test_it_counts_as_memory(inside: Callable, host: Host, ramdisk: Made, enforcer: str) -> None:
    if enforcer == "watchdog":
        host.memory, host.memory_enforcer = Watchdog("for this test"), "watchdog"
    limits = replace(MEMORY, disk_mb=200, memory_mb=60)
    overlay = ramdisk({}, limits)
    outcome, _ = inside("head -c 150000000 /dev/zero > x; sleep 60", workdir="/app", overlays=(overlay,), limits=limits)
    assert (outcome.limit, outcome.memory_enforcer) == ("memory", host.memory_enforcer)


def test_ramdisks_of_several_sandboxes_do_not_meet(inside: Callable, ramdisk: Made) -> None:
    overlays = [ramdisk() for _ in range(3)]
    for number, overlay in enumerate(overlays):
        inside(f"echo {number} > x; ls / /tmp > seen", workdir="/app", overlays=(overlay,), limits=MEMORY)
    assert [(overlay.upper / "x").read_text() for overlay in overlays] == ["0\n", "1\n", "2\n"]
    assert len({(overlay.upper / "seen").read_text() for overlay in overlays}) == 1


def test_promises_hold_in_it_too(host: Host, inside: Callable, ramdisk: Made) -> None:
    for script, python in ((PROBE, False), (CALLS, True)):
        overlays = (ramdisk({"old": "old\n"}),)
        outcome, text = inside(script, python=python, workdir="/app", overlays=overlays, limits=MEMORY)
        assert (outcome.exit_code, text) == (0, "")


@pytest.mark.parametrize(
    ("error", "cause", "fix"),
    [
        ("/run/.sia/u0: Operation not supported", "no user.* attributes", "Linux 6.6"),
        ("a user namespace: Operation not permitted", "may not make a user namespace", "sia doctor"),
        ("/x/u0: Permission denied", "no tmpfs can be mounted", "AppArmor"),
    ],
)
def test_a_machine_without_it_is_told_apart(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, cause: str, fix: str
) -> None:
    """What such a kernel answers is put in the spawner's mouth; nothing is left of the attempt."""
    monkeypatch.setattr(host.launcher, "ask", lambda _: (error, []))
    for attempt in (host.ramdisks.prove, lambda: host.space(tmp_path / "ramdisk", MEMORY)):
        with pytest.raises(CannotIsolate, match=cause) as caught:
            attempt()
        assert fix in caught.value.fix and 'upper = "disk"' in caught.value.fix
    assert not os.path.lexists(tmp_path / "ramdisk")


def test_bounds_are_needed(host: Host, tmp_path: Path) -> None:
    with pytest.raises(CannotIsolate, match="needs a size"):
        host.space(tmp_path / "ramdisk", replace(MEMORY, disk_mb=None))
    (tmp_path / "ramdisk").mkdir()
    with pytest.raises(SandboxFailed, match="can't be created"):
        host.space(tmp_path / "ramdisk", MEMORY)
    assert host.space(tmp_path / "other", Limits()) == tmp_path / "other"


def test_outcomes_name_nothing_when_nothing_is_full(inside: Callable, ramdisk: Made) -> None:
    outcome, _ = inside("head -c 8000000 /dev/zero > x", workdir="/app", overlays=(ramdisk(),), limits=MEMORY)
    assert (outcome.exit_code, outcome.limit) == (0, None)
