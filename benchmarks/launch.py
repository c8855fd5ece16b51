"""A sandbox launch with full protection, against raw `bwrap --overlay` of the same command, as user and as root."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figure import Figure, alternate
from sandbox import bwrap, interpreter
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Overlay, SandboxSpec

RUNS = 60
ROOT = Path(__file__).resolve().parent.parent
AS_USER = ROOT / "tests" / "as_user.py"
USER = 61002
BALLAST = 1 << 30  # bytes; a launch must not cost more in a supervisor that holds them
# The least that anybody would call isolated: what `bwrap --unshare-all` gives, over the same overlay.
RAW = ["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]


def measure() -> list[Figure]:
    """Figures of this user; as root also those of an unprivileged one, taken in a child."""
    if os.geteuid() != 0:
        return _figures(_medians(), "as a user", 1.6)
    return [*_figures(_as_user(), "as a user", 1.6), *_figures(_medians(), "as root", 2.5)]


def _figures(medians: dict[str, float], who: str, limit: float) -> list[Figure]:
    detail = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in medians.items())
    yardstick = "raw bwrap --unshare-all --dev --proc --overlay"
    growth = (medians["large"] / medians["raw then"]) / (medians["launch"] / medians["raw"])
    return [
        Figure(f"sandbox launch {who}", medians["launch"] / medians["raw"], limit, yardstick, detail),
        Figure(f"sandbox launch {who}, supervisor of 1 GiB against a small one", growth, 1.25, "raw bwrap, each time"),
    ]


def _medians() -> dict[str, float]:
    """Medians of raw bwrap, of a full launch, and of one from a process that holds a lot of memory."""
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

        medians = alternate(RUNS, raw=raw, launch=launch)
        ballast = bytearray(os.urandom(1 << 20)) * (BALLAST >> 20)
        again = alternate(RUNS, raw=raw, launch=launch)
        medians |= {"large": again["launch"], "raw then": again["raw"]}
        del ballast
        for path in place.iterdir():
            host.remove(path)
    return medians


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
    print(json.dumps(_medians()))
