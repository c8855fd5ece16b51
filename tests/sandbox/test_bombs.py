"""Bombs: each ends with a limit's name in its outcome, or inside with an error; the supervisor stays as it was."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.captured import run_captured
from sandbox import usage
from sandbox.host import Host
from sandbox.memory import Watchdog
from sandbox.process import Outcome, Sandbox
from sandbox.spec import Limits, Overlay, SandboxSpec

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]

LATE = 40  # seconds: no bomb may need that long to be noticed; then the outcome would say `seconds`

SHELL_BOMBS = {"shell": "bomb() { bomb | bomb & }; bomb; sleep 3", "waiting": "while :; do sleep 60 & done"}
LOOP = "import os, time, _thread\nwhile True:\n    try:\n        {}\n    except (OSError, RuntimeError):\n        pass"
PYTHON_BOMBS = {
    "python": LOOP.format("os.fork()"),
    "threads": LOOP.format("_thread.start_new_thread(time.sleep, (60,))"),
    "short-lived": LOOP.format("os.fork() or (time.sleep(0.05), os._exit(0))"),
    "daemons": LOOP.format("os.fork() or (os.setsid(), os.fork() or time.sleep(60), os._exit(0))"),
    "oscillating": LOOP.format("os.fork() or time.sleep(0.3) or os._exit(0) if os.getpid() > 40 else os.fork()"),
    "dying at once": LOOP.format("os.fork() or os._exit(0)"),
}


@pytest.mark.parametrize("name", [*SHELL_BOMBS, *PYTHON_BOMBS])
def test_fork_bomb(inside: Callable, name: str) -> None:
    python = name in PYTHON_BOMBS
    script = PYTHON_BOMBS[name] if python else SHELL_BOMBS[name]
    outcome, text = inside(script, python=python, limits=Limits(processes=60, seconds=LATE))
    gave_up = not python and "Cannot fork" in text  # a shell that may not fork ends itself
    assert outcome.limit == ("processes" if outcome.signal == 9 or not gave_up else None)


MEMORY_BOMBS = {
    "heap": "x = [bytearray(4 << 20) for _ in range(100)]",
    "memfd": "f = os.memfd_create('x'); [os.write(f, bytes(4 << 20)) for _ in range(100)]",
    "memfd of several": "fs = [os.memfd_create('x') for _ in range(50)]; [os.write(f, bytes(8 << 20)) for f in fs]",
    "shared mapping": "m = mmap.mmap(-1, 400 << 20); [m.__setitem__(n, 1) for n in range(0, 400 << 20, 4096)]",
    "many small": "p = [os.fork() for _ in range(4)]; x = [bytearray(1 << 20) for _ in range(30)]",
    "hidden by exec": "os.fork(); os.fork(); os.fork(); x = bytearray(60 << 20)",
}


@pytest.mark.parametrize("enforcer", ["best", "watchdog"])
@pytest.mark.parametrize("name", MEMORY_BOMBS)
def test_memory_bomb(inside: Callable, host: Host, name: str, enforcer: str) -> None:
    if enforcer == "watchdog":
        host.memory, host.memory_enforcer = Watchdog("for this test"), "watchdog"
    script = f"import os, mmap, time\n{MEMORY_BOMBS[name]}\ntime.sleep({LATE + 20})"
    outcome, _ = inside(script, python=True, limits=Limits(memory_mb=200, seconds=LATE))
    assert (outcome.limit, outcome.memory_enforcer) == ("memory", host.memory_enforcer)


# Nothing shows the size of these to a user: `m` maps a file, and nobody has it open.
MAP = """
import ctypes, os, platform, socket, threading, time
libc = ctypes.CDLL(None)
m, u = libc.mmap, libc.munmap
m.restype = ctypes.c_void_p
m.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
u.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
a, b = socket.socketpair()
def keep(f, how):
    m(None, 4096, 1, 1, f, 0) if how == "mapped" else socket.send_fds(a, [b"x"], [f])
    os.close(f)
def memory(how):
    for n in range(60):
        f = os.memfd_create("x")
        os.write(f, bytes(4 << 20))
        keep(f, how)
def disk(how, files, size):
    for n in range(files):
        f = os.open("f", os.O_RDWR | os.O_CREAT)
        os.unlink("f")
        os.write(f, bytes(size))
        keep(f, how)
def shared():
    for n in range(60):
        p = m(None, 4 << 20, 3, 33, -1, 0)
        ctypes.memset(p, 1, 4 << 20)
        u(p + 4096, (4 << 20) - 4096)
def without_first_thread(work):
    threading.Thread(target=lambda: (time.sleep(0.1), work(), time.sleep(60)), daemon=True).start()
    libc.syscall(60 if platform.machine() == "x86_64" else 93, 0)
def unreadable(work):
    libc.prctl(4, 0, 0, 0, 0)
    work()
"""
HIDDEN_MEMORY = (
    "memory('mapped')",
    "memory('sent')",
    "shared()",
    "without_first_thread(lambda: globals().update(x=bytearray(400 << 20)))",
    "unreadable(lambda: globals().update(f=os.memfd_create('x')) or [os.write(f, bytes(4 << 20)) for _ in range(60)])",
)


@pytest.mark.parametrize("bomb", HIDDEN_MEMORY)
def test_memory_that_only_the_machine_counts(inside: Callable, host: Host, bomb: str) -> None:
    host.memory, host.memory_enforcer = Watchdog("for this test"), "watchdog"
    script = f"{MAP}\n{bomb}\ntime.sleep({LATE + 20})"
    outcome, _ = inside(script, python=True, limits=Limits(memory_mb=200, seconds=LATE))
    assert (outcome.limit, outcome.memory_enforcer) == ("memory", "watchdog")


def test_segments_that_nobody_has_are_refused_where_memory_is_watched(inside: Callable, host: Host) -> None:
    get = "print([libc.shmget(0, size, 0o1600) != -1 for size in (4096, 4097, 400 << 20)])"
    bounded = host.memory_enforcer != "watchdog"
    assert inside(f"{MAP}\n{get}", python=True)[1] == f"[True, {bounded}, {bounded}]\n"
    host.memory, host.memory_enforcer = Watchdog("for this test"), "watchdog"
    assert inside(f"{MAP}\n{get}", python=True)[1] == "[True, False, False]\n"


def test_tmpfs_is_bounded_by_its_size_and_counts_where_there_is_a_cgroup(inside: Callable, host: Host) -> None:
    script = "dd if=/dev/zero of=/tmp/x bs=1M count=90 2>/dev/null; dd if=/dev/zero of=/dev/shm/x bs=1M; sleep 0.5"
    outcome, _ = inside(script, limits=Limits(memory_mb=80, tmp_mb=100, shm_mb=20, seconds=LATE))
    assert outcome.limit == ("memory" if host.memory_enforcer != "watchdog" else None)


def test_the_page_cache_is_nobodys_memory(inside: Callable, overlay: Callable) -> None:
    """Files that are larger than the bound: the kernel drops their pages again."""
    script = "dd if=/dev/zero of=f bs=1M count=150 2>/dev/null && cat f f > /dev/null && echo read"
    outcome, text = inside(script, workdir="/app", overlays=(overlay(),), limits=Limits(memory_mb=60, seconds=LATE))
    assert (outcome.exit_code, outcome.limit, text) == (0, None, "read\n")


DISK_BOMBS = {
    "one file": ("disk", "f = open('f', 'wb'); [f.write(bytes(1 << 20)) for _ in range(90)]; f.flush()"),
    "deleted but open": ("disk", "f = open('f', 'wb'); os.unlink('f'); [f.write(bytes(1 << 20)) for _ in range(90)]"),
    "sparse, filled": ("disk", "f = open('f', 'wb'); [(f.seek(n << 22), f.write(bytes(1 << 20))) for n in range(90)]"),
    "in a closed directory": (
        "disk",
        "os.makedirs('d/e'); f = open('d/e/f', 'wb'); os.chmod('d', 0); [f.write(bytes(1 << 20)) for _ in range(90)]",
    ),
    "in one that only lists": (
        "disk",
        "os.mkdir('d'); f = open('d/f', 'wb'); os.chmod('d', 0o400); [f.write(bytes(1 << 20)) for _ in range(90)]",
    ),
    "files": ("inodes", "[open(f'f{n}', 'wb').close() for n in range(3000)]"),
    "directories": ("inodes", "[os.mkdir(f'd{n}') for n in range(3000)]"),
    "symlinks": ("inodes", "[os.symlink('x', f'l{n}') for n in range(3000)]"),
    "deep": ("inodes", "[(os.mkdir('d'), os.chdir('d')) for n in range(3000)]"),
    "far down": (
        "inodes",
        "[(os.mkdir('d' * 200), os.chdir('d' * 200)) for n in range(40)]; [os.mkdir(f'd{n}') for n in range(3000)]",
    ),
    "in a closed place": (
        "inodes",
        "os.mkdir('d'); os.chdir('d'); [open(f'f{n}', 'wb').close() for n in range(3000)]; os.chmod('.', 0)",
    ),
}


HIDDEN_DISK = {
    "disk('mapped', 90, 1 << 20)": "disk",
    "disk('sent', 90, 1 << 20)": "disk",
    "disk('mapped', 3000, 0)": "inodes",
    "unreadable(lambda: globals().update(f=open('f', 'wb')) or os.unlink('f') or f.write(bytes(90 << 20)))": "disk",
    "without_first_thread(lambda: disk('mapped', 90, 1 << 20))": "disk",
}


@pytest.mark.parametrize("bomb", HIDDEN_DISK)
def test_files_that_no_list_shows_take_disk(inside: Callable, overlay: Callable, bomb: str) -> None:
    limits = Limits(disk_mb=50, inodes=1500, seconds=LATE)
    script = f"{MAP}\n{bomb}\ntime.sleep({LATE + 20})"
    outcome, _ = inside(script, python=True, workdir="/app", overlays=(overlay(),), limits=limits)
    assert outcome.limit == HIDDEN_DISK[bomb]


def test_a_mapped_file_that_was_replaced_is_no_matter(inside: Callable, overlay: Callable) -> None:
    script = f"{MAP}\ndisk('mapped', 3, 1 << 20); disk('sent', 3, 1 << 20); time.sleep(1)"
    limits = Limits(disk_mb=50, inodes=1500, seconds=LATE)
    outcome, text = inside(script, python=True, workdir="/app", overlays=(overlay(),), limits=limits)
    assert (outcome.exit_code, outcome.limit, text) == (0, None, "")


@pytest.mark.parametrize("name", DISK_BOMBS)
def test_disk_bomb(inside: Callable, overlay: Callable, host: Host, name: str) -> None:
    limit, bomb = DISK_BOMBS[name]
    script = f"import os, time\n{bomb}\ntime.sleep({LATE + 20})"
    limits = Limits(disk_mb=50, inodes=1500, seconds=LATE)
    app: Overlay = overlay()
    outcome, _ = inside(script, python=True, workdir="/app", overlays=(app,), limits=limits)
    host.remove(app.upper.parent)  # others could not: it may be too deep
    assert outcome.limit == limit


def test_what_is_deleted_again_does_not_count(inside: Callable, overlay: Callable) -> None:
    script = "for i in 1 2 3 4 5 6; do dd if=/dev/zero of=f bs=1M count=20 2>/dev/null; rm f; done; truncate -s 1G s"
    limits = Limits(disk_mb=50, inodes=1500, seconds=LATE)
    outcome, _ = inside(script, workdir="/app", overlays=(overlay(),), limits=limits)
    assert (outcome.exit_code, outcome.limit) == (0, None)


def test_cpu_spin(inside: Callable) -> None:
    outcome, _ = inside("while :; do :; done & while :; do :; done", limits=Limits(seconds=1))
    assert (outcome.limit, outcome.signal) == ("seconds", 9)


def test_descriptor_flood_ends_inside(inside: Callable) -> None:
    script = "import os\nn = 0\ntry:\n    while True: os.dup(1); n += 1\nexcept OSError as e: print(n, e.errno)"
    outcome, text = inside(script, python=True, limits=Limits(open_files=200, seconds=LATE))
    assert (outcome.exit_code, text) == (0, "197 24\n")


FLOOD = """
import os
block = b"x" * (1 << 20)
for n in range(1024):
    for descriptor in (1, 2):
        left = len(block)
        while left: left -= os.write(descriptor, block[:left])
"""


def test_output_flood_is_cut_and_takes_no_memory(host: Host, tmp_path: Path) -> None:
    """2 GB on stdout and stderr together."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    python = Path(sys.executable)
    spec = SandboxSpec((str(python), "-I", "-S", "-c", FLOOD), "/tmp", python=python, limits=Limits(seconds=100))
    outcome = run_captured(host, spec, tmp_path / "output", 1 << 20)
    assert (outcome.exit_code, outcome.limit) == (0, None)
    assert (tmp_path / "output").stat().st_size < (1 << 20) + 4096
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30 << 10  # kB


def test_neighbours_do_not_notice(host: Host, overlay: Callable[..., Overlay]) -> None:
    """Bombs of all kinds beside an ordinary sandbox: it does all that it has to, and is named by no limit."""
    work = "for i in $(seq 200); do echo $i > f$i && (read -r x < f$i && [ $x = $i ]) || exit 1; done; exit 9"
    python = str(Path(sys.executable))
    bombs = [
        ((python, "-I", "-S", "-c", PYTHON_BOMBS["python"]), Limits(processes=40, seconds=LATE), "processes"),
        ((python, "-I", "-S", "-c", "x = [bytearray(1 << 20) for _ in range(400)]\nimport time; time.sleep(60)"),
         Limits(memory_mb=100, seconds=LATE), "memory"),
        (("sh", "-c", "dd if=/dev/zero of=f bs=1M count=200; sleep 60"), Limits(disk_mb=30, seconds=LATE), "disk"),
        (("sh", "-c", "while :; do :; done"), Limits(seconds=2), "seconds"),
    ]  # fmt: skip
    ended: dict[str, Outcome | None] = {}

    def launch(command: tuple[str, ...], limits: Limits, name: str) -> None:
        place = overlays.pop()
        spec = SandboxSpec(command, "/app", overlays=(place,), limits=limits, python=Path(sys.executable))
        with Sandbox.start(host, spec) as box:
            ended[name] = box.wait(90)

    overlays = [overlay() for _ in range(len(bombs) + 1)]
    everything = [*bombs, (("sh", "-c", work), Limits(seconds=90), "work")]
    threads = [threading.Thread(target=launch, args=one) for one in everything]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: outcome.limit for name, outcome in ended.items() if outcome} == {
        **{name: name for _, _, name in bombs}, "work": None,
    }  # fmt: skip
    assert ended["work"] and ended["work"].exit_code == 9
    assert len(usage.tree(os.getpid())) < 20  # nothing is left of them
    assert not host.live
