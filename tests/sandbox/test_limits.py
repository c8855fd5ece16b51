"""Each bound ends the sandbox, and is named in the outcome."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox import usage
from sandbox.host import Host
from sandbox.memory import Watchdog
from sandbox.spec import Limits

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]


def test_seconds(inside: Callable) -> None:
    before = time.monotonic()
    outcome, _ = inside("sleep 60", limits=Limits(seconds=0.5))
    assert (outcome.limit, outcome.signal, outcome.exit_code) == ("seconds", 9, None)
    assert 0.5 <= outcome.seconds < 30
    assert time.monotonic() - before < 50


@pytest.mark.parametrize(
    "bomb", ["x = bytearray(400 << 20)", "p = [__import__('os').fork() for _ in range(3)]; x = bytearray(60 << 20)"]
)
def test_memory(inside: Callable, host: Host, bomb: str) -> None:
    script = f"import time\n{bomb}\ntime.sleep(30)"
    outcome, _ = inside(script, python=True, limits=Limits(memory_mb=200, seconds=25))
    assert outcome.limit == "memory"
    assert outcome.memory_enforcer == host.memory_enforcer


def test_memory_is_watched_where_there_is_no_cgroup(inside: Callable, host: Host) -> None:
    host.memory, host.memory_enforcer = Watchdog("for this test"), "watchdog"
    script = "import time\nx = bytearray(400 << 20)\ntime.sleep(30)"
    outcome, _ = inside(script, python=True, limits=Limits(memory_mb=200, seconds=25))
    assert (outcome.limit, outcome.memory_enforcer) == ("memory", "watchdog")
    assert outcome.peak_memory_mb and outcome.peak_memory_mb > 200


def test_memory_below_the_bound_is_no_matter(inside: Callable) -> None:
    outcome, _ = inside("x = bytearray(50 << 20)", python=True, limits=Limits(memory_mb=200, seconds=25))
    assert (outcome.exit_code, outcome.limit) == (0, None)


def test_processes(inside: Callable) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    outcome, _ = inside(bomb, python=True, limits=Limits(processes=40, seconds=25))
    assert outcome.limit == "processes"


def test_processes_are_counted_per_sandbox(inside: Callable) -> None:
    outcome, text = inside(
        "ulimit -a | grep process; sleep 0.3 & sleep 0.3 & wait", limits=Limits(processes=10, seconds=20)
    )
    assert (outcome.exit_code, outcome.limit) == (0, None)
    assert " 11" in text


def test_disk(inside: Callable, overlay: Callable) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=f$i bs=1M count=20 2>/dev/null; done; sleep 20"
    limits = Limits(disk_mb=50, seconds=25)
    outcome, _ = inside(script, workdir="/app", overlays=(overlay(),), limits=limits)
    assert outcome.limit == "disk"


def test_disk_is_looked_at_after_a_quick_end_too(inside: Callable, overlay: Callable) -> None:
    limits = Limits(disk_mb=5, seconds=25)
    outcome, _ = inside("dd if=/dev/zero of=f bs=1M count=20", workdir="/app", overlays=(overlay(),), limits=limits)
    assert outcome.limit == "disk"


def test_nesting_deeper_than_we_look_hides_nothing(inside: Callable, overlay: Callable, host: Host) -> None:
    """Paths of 330 kB; what lies at their end is no path that could be looked at."""
    script = (
        "import os, time\nfor _ in range(1650): os.mkdir('d' * 200); os.chdir('d' * 200)\n"
        "for number in range(8):\n with open(f'f{number}', 'wb') as file: file.write(bytes(20 << 20))\ntime.sleep(20)"
    )
    limits, app = Limits(disk_mb=50, seconds=25), overlay()
    outcome, _ = inside(script, python=True, workdir="/app", overlays=(app,), limits=limits)
    host.remove(app.upper)  # pytest could not
    assert outcome.limit == "disk"


def test_a_file_without_a_name_takes_disk(inside: Callable, overlay: Callable) -> None:
    script = "exec 3>f; rm f; dd if=/dev/zero bs=1M count=80 >&3 2>/dev/null; sleep 20"
    outcome, _ = inside(script, workdir="/app", overlays=(overlay(),), limits=Limits(disk_mb=50, seconds=25))
    assert outcome.limit == "disk"


def test_inodes(inside: Callable, overlay: Callable) -> None:
    script = "i=0; while [ $i -lt 3000 ]; do : > f$i; i=$((i+1)); done; sleep 20"
    outcome, _ = inside(script, workdir="/app", overlays=(overlay(),), limits=Limits(inodes=1000, seconds=25))
    assert outcome.limit == "inodes"


def test_sparse_files_count_as_what_they_take(inside: Callable, overlay: Callable) -> None:
    limits = Limits(disk_mb=10, seconds=25)
    outcome, _ = inside("truncate -s 500M big; sleep 0.6", workdir="/app", overlays=(overlay(),), limits=limits)
    assert (outcome.exit_code, outcome.limit) == (0, None)


def test_one_file_is_bounded(inside: Callable, overlay: Callable) -> None:
    script = "head -c 5000000 /dev/zero > big; stat -c %s big; ulimit -n; ulimit -Hc"
    limits = Limits(file_size_mb=2, seconds=25)
    outcome, text = inside(script, workdir="/app", overlays=(overlay(),), limits=limits)
    assert outcome.limit is None
    assert text.splitlines()[-3:] == [str(2 << 20), "1024", "0"]


def test_tmp_is_small(inside: Callable) -> None:
    fill = "dd if=/dev/zero of=$d/x bs=1M count=30 2>/dev/null && echo $d"
    script = f"for d in /tmp /home/agent /dev/shm /run; do {fill}; done"
    outcome, text = inside(script, limits=Limits(tmp_mb=5, shm_mb=5, seconds=25))
    assert text == ""
    assert outcome.limit is None


def test_tree_finds_orphans_and_threads(host: Host) -> None:
    pids = usage.tree(os.getpid())
    assert pids[0] == os.getpid() and host.launcher.pid in pids
    assert usage.tasks([os.getpid()]) >= 1
    assert usage.proportional([os.getpid()]) <= usage.resident([os.getpid()])


def test_a_directory_that_becomes_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanged between the look at its name and the look into it, as an instance that still writes can do."""
    upper, elsewhere = tmp_path / "upper", tmp_path / "elsewhere"
    for path in (upper / "one", upper / "two/below", elsewhere / "below"):
        path.mkdir(parents=True)
    for number in range(50):
        (elsewhere / f"below/{number}").touch()
    seen = usage.disk([upper])
    assert (seen.inodes, seen.hidden) == (3, False)
    list_directory, calls = os.scandir, 0

    def listed_late(place: int | str) -> Iterator[os.DirEntry[str]]:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first was the top; whichever comes now, the other waits
            for name in ("one", "two"):
                (upper / name).rename(tmp_path / name)
                (upper / name).symlink_to(elsewhere)
        return list_directory(place)

    monkeypatch.setattr(os, "scandir", listed_late)
    assert usage.disk([upper]).inodes <= 3
    assert calls > 1
