"""What the agent costs before it works: its import, and the memory of an instance that waits for its first answer."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.figure import Figure, alternate, command

ROOT = Path(__file__).resolve().parent.parent
MEMORY_MB = 45.0
_LIBRARIES = "import lxml.etree, psutil"
_IMPORT = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import instance.__main__"
# Answers counts and limits, and never an inference.
_ENGINE = """
import socket
line, rest = socket.socket(fileno=0), b""
while True:
    while b"\\x04" not in rest:
        data = line.recv(65536)
        if not data:
            raise SystemExit
        rest += data
    request, _, rest = rest.partition(b"\\x04")
    if not request.startswith(b"<infer"):
        line.sendall(b"32768\\x04" if b"limit" in request[:14] else b"900\\x04")
"""


def resident() -> tuple[float, float]:
    """Resident megabytes of an idle instance after two seconds, and of an interpreter with only its libraries."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "engine.py").write_text(_ENGINE)
        agent = [sys.executable, "-P", "-m", "instance", "--data", directory]
        bare = [sys.executable, "-c", f"{_LIBRARIES}; import time; time.sleep(60)"]
        engine = f"{sys.executable} {directory}/engine.py"
        return _resident([*agent, "--engine", engine]), _resident(bare)


def _resident(argv: list[str]) -> float:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(2.0)
            return float(psutil.Process(process.pid).memory_info().rss) / 1e6
        finally:
            process.kill()


def measure() -> list[Figure]:
    """Import against the import of the libraries it needs; resident memory against its limit."""
    times = alternate(
        25,
        libraries=command([sys.executable, "-c", _LIBRARIES]),
        agent=command([sys.executable, "-c", _IMPORT]),
    )
    idle, bare = resident()
    detail = f"{times['agent'] * 1000:.0f} ms, yardstick {times['libraries'] * 1000:.0f} ms"
    memory = f"{idle:.1f} MB resident; an interpreter with only its libraries has {bare:.1f} MB"
    return [
        Figure("agent: import", times["agent"] / times["libraries"], 2.0, f"python -c '{_LIBRARIES}'", detail),
        Figure("agent: resident memory of an idle instance", idle / MEMORY_MB, 1.0, f"{MEMORY_MB:g} MB", memory),
    ]
