"""A sandbox launch with full protection, against raw `bwrap --overlay` of the same command, as user and as root."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.figure import Figure, alternate
from sandbox import bwrap, interpreter
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Limits, Overlay, SandboxSpec

RUNS = 60
ROOT = Path(__file__).resolve().parent.parent
AS_USER = ROOT / "tests" / "as_user.py"
USER = 61002
BALLAST = 1 << 30  # bytes; a launch must not cost more in a supervisor that holds them
MANY = 1000  # sequential launches that must leave nothing behind
AT_ONCE = 2  # threads that launch
EACH = 60  # launches of each of them
# The least that anybody would call isolated: the same namespaces and the same overlay, and nothing else.
RAW = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
RAW += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]


def measure() -> list[Figure]:
    """Figures of this user; as root also those of an unprivileged one, taken in a child."""
    if os.geteuid() != 0:
        return _figures(_medians(), "as a user", 1.5)
    return [*_figures(_as_user(), "as a user", 1.5), *_figures(_medians(), "as root", 2.0)]


def _figures(medians: dict[str, float], who: str, limit: float) -> list[Figure]:
    times = {name: medians[name] for name in ("raw", "launch", "small", "large")}
    detail = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in times.items())
    yardstick = "raw bwrap, same namespaces and overlay"
    rates = f"{medians['rate']:.0f} launches/s against {medians['raw rate']:.0f}"
    kept = f"descriptors, mounts: {medians['things before']:.0f} then {medians['things after']:.0f}"
    memory = f"{medians['memory before']:.1f} MB then {medians['memory after']:.1f} MB"
    return [
        Figure(f"sandbox launch {who}", medians["launch"] / medians["raw"], limit, yardstick, detail),
        Figure(
            f"{who}, from a supervisor of 1 GiB", medians["large"] / medians["small"], 1.25, "from a small one", detail
        ),
        Figure(f"{AT_ONCE} threads launching {who}", medians["raw rate"] / medians["rate"], 2.0, yardstick, rates),
        Figure(
            f"upper in memory {who}",
            medians["in memory"] / medians["on disk"],
            2.0,  # a user's tmpfs needs a mount in a namespace for each launch, a directory on disk does not
            "upper on disk",
            f"with its making and removal: {medians['in memory'] * 1000:.1f} ms and {medians['on disk'] * 1000:.1f} ms",
        ),
        Figure(f"{MANY} launches {who}", medians["things after"] / medians["things before"], 1.0, "before them", kept),
        Figure(f"their memory {who}", medians["memory after"] / medians["memory before"], 1.05, "before them", memory),
    ]


def _medians() -> dict[str, float]:
    """Medians of raw bwrap, of a full launch, and what else is measured beside them."""
    with tempfile.TemporaryDirectory(prefix="sia-bench-") as name, Host.detect(Path(name) / "state") as host:
        place = Path(name)
        (place / "lower").mkdir()
        host.own(place / "lower")
        numbers = itertools.count()

        def launch() -> None:
            upper, work = host.make_upper(place / "state", str(next(numbers)))
            overlay = Overlay("/app", (place / "lower",), upper, work)
            with Sandbox.start(host, SandboxSpec(("true",), "/app", overlays=(overlay,))) as sandbox:
                outcome = sandbox.wait(60)
            assert outcome is not None and outcome.exit_code == 0, outcome

        def raw() -> None:
            top = place / f"raw{next(numbers)}"
            for directory in (top, top / "upper", top / "work"):
                directory.mkdir()
            overlay: list[str | Path] = [
                "--overlay-src",
                place / "lower",
                "--overlay",
                top / "upper",
                top / "work",
                "/mnt",
            ]
            command: list[str | Path] = [bwrap.find().path, *RAW, *overlay, "--chdir", "/mnt", "true"]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin"})

        def whole(limits: Limits) -> None:
            space = host.space(place / "state" / f"space{next(numbers)}", limits)
            upper, work = host.make_upper(space, "0")
            overlay = Overlay("/app", (place / "lower",), upper, work)
            with Sandbox.start(host, SandboxSpec(("true",), "/app", overlays=(overlay,), limits=limits)) as sandbox:
                sandbox.wait(60)
            host.remove(space)

        medians = alternate(RUNS, raw=raw, launch=launch)
        memory = Limits(upper="memory")
        medians |= alternate(RUNS, **{"on disk": lambda: whole(Limits()), "in memory": lambda: whole(memory)})
        medians |= {"raw rate": _rate(raw), "rate": _rate(lambda: _true(host))} | _left(host)
        medians |= _sizes(lambda: _true(host))
        for path in place.iterdir():
            host.remove(path)
    return medians


def _true(host: Host) -> None:
    """The smallest launch."""
    with Sandbox.start(host, SandboxSpec(("true",), "/tmp")) as sandbox:
        sandbox.wait(60)


def _sizes(launch: Callable[[], object]) -> dict[str, float]:
    """Launches from here with a lot of memory, and in turn from a small process: noise of the machine hits both."""
    ballast = bytearray(os.urandom(1 << 20)) * (BALLAST >> 20)
    words = [sys.executable, "-m", "benchmarks.launch", "small"]
    times: dict[str, list[float]] = {"small": [], "large": []}
    with subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as small:
        assert small.stdin and small.stdout
        for _ in range(RUNS):
            started = time.perf_counter()
            launch()
            times["large"].append(time.perf_counter() - started)
            small.stdin.write("launch\n")
            times["small"].append(float(small.stdout.readline()))
        small.stdin.close()
    del ballast
    return {name: statistics.median(values) for name, values in times.items()}


def _small() -> None:
    """The small process: one launch for each line."""
    with tempfile.TemporaryDirectory(prefix="sia-bench-") as name, Host.detect(Path(name) / "state") as host:
        for _ in sys.stdin:
            started = time.perf_counter()
            _true(host)
            print(time.perf_counter() - started, flush=True)


def _rate(work: Callable[[], object]) -> float:
    """Calls per second of several threads together."""
    started = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(work) for _ in range(AT_ONCE * EACH)]:
            done.result()
    return AT_ONCE * EACH / (time.perf_counter() - started)


def _left(host: Host) -> dict[str, float]:
    """Descriptors and mounts, and megabytes, of supervisor and spawner before and after many launches."""

    def things() -> int:
        places = [place for pid in ("self", str(host.launcher.pid)) for place in Path(f"/proc/{pid}/fd").iterdir()]
        mounts = [Path(f"/proc/{pid}/mounts").read_text() for pid in ("self", str(host.launcher.pid))]
        return len(places) + sum(text.count("\n") for text in mounts)

    def memory() -> float:
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in ("self", str(host.launcher.pid))]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    for _ in range(MANY // 10):
        _true(host)
    before = {"things before": float(things()), "memory before": memory()}
    for _ in range(MANY):
        _true(host)
    return before | {"things after": float(things()), "memory after": memory()}


def _as_user() -> dict[str, float]:
    """The same measurement by an unprivileged uid that can reach this checkout and interpreter."""
    needed = [*map(str, interpreter.roots(Path(sys.executable))), str(ROOT)]
    base = str(Path(sys.executable).resolve())
    with tempfile.TemporaryDirectory(prefix="sia-bench-user-") as name:
        os.chown(name, USER, USER)
        words = [base, "-I", "-S", str(AS_USER), str(USER), *needed, "--", sys.executable, "-m", "benchmarks.launch"]
        environment = {"PATH": os.environ["PATH"], "HOME": name, "TMPDIR": name, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(words, check=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    medians: dict[str, float] = json.loads(done.stdout)
    return medians


if __name__ == "__main__":
    if sys.argv[1:] == ["small"]:
        _small()
    else:
        print(json.dumps(_medians()))
