"""Whether an environment's interpreter runs in a task's rootfs: it is tried once, and a refusal says why.

An environment brings its interpreter, whose dynamic libraries come from the rootfs. Where those are older, of another
C library or not there, or where the interpreter itself lies in the host's /usr (which the rootfs replaces), no trial
could tell anything about a candidate.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

from orchestrator.captured import run_captured
from orchestrator.errors import ConfigError
from orchestrator.tasks import Task
from orchestrator.untrusted import printable
from sandbox.host import Host
from sandbox.spec import Bind, Limits, SandboxSpec

PLACE = "/opt/tried-env"
SECONDS = 60.0
OUTPUT_CAP = 16 * 1024
FIX = (
    "use a rootfs with bash and the libraries that the interpreter needs (a glibc at least as new as what it was built"
    " for), and a Python with a prefix of its own (such as `uv python install` gives), not the one in the host's /usr"
)
# Every extension module of the environment must find its libraries; symbols of the interpreter itself are bound late.
PROGRAM = """
import glob, json, os, select, socket, subprocess, sys, zlib
faults = []
for name in sys.argv[1:]:
    try:
        __import__(name)
    except ImportError as error:
        faults.append(f"{name}: {error}")
try:
    import ctypes
except ImportError:
    pass  # then extension modules can't be tried
else:
    for path in glob.glob(sys.prefix + "/lib/python3*/site-packages/**/*.so*", recursive=True):
        try:
            ctypes.CDLL(path, os.RTLD_LAZY)
        except OSError as error:
            faults.append(str(error))
sys.exit("\\n".join(faults[:3]) or 0)
"""

_known: dict[tuple[Path, Path], str] = {}
_lock = threading.Lock()


def check_trial(host: Host, task: Task, agent: Path, verifier: Path) -> None:
    """`check` for both environments of a trial; nothing to do for a task without a rootfs."""
    check(host, task, agent, "the agent's environment")
    check_verifier(host, task, verifier)


def check_verifier(host: Host, task: Task, environment: Path) -> None:
    """`check` for the verifier's environment; `confine` needs ctypes."""
    check(host, task, environment, "the verifier's environment", ("ctypes",))


def check(host: Host, task: Task, environment: Path, name: str, modules: tuple[str, ...] = ()) -> None:
    """Raise ConfigError, with the reason, if `environment` (a venv) or bash can't run in the task's rootfs, or one of
    `modules` can't be imported there. Nothing to do without a rootfs. Tried once in this process for each pair.
    """
    if task.rootfs is None:
        return
    key = task.rootfs, environment
    with _lock:
        if key not in _known:
            _known[key] = _try(host, task.rootfs, environment, modules)
        reason = _known[key]
    if reason:
        what = f"{name} can't run in the rootfs of task {task.name}: {reason}"
        raise ConfigError(what, where=str(task.rootfs), fix=FIX)


def _try(host: Host, rootfs: Path, environment: Path, modules: tuple[str, ...]) -> str:
    spec = SandboxSpec(
        command=("/bin/bash", "-c", 'exec "$@"', "bash", f"{PLACE}/bin/python", "-I", "-c", PROGRAM, *modules),
        workdir="/tmp",
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        binds=(Bind(environment, PLACE),),
        limits=Limits(seconds=SECONDS),
        python=environment / "bin" / "python",
        rootfs=rootfs,
    )
    descriptor, name = tempfile.mkstemp(prefix="rootfs-", dir=host.state)
    os.close(descriptor)
    output = Path(name)
    try:
        outcome = run_captured(host, spec, output, OUTPUT_CAP)
        said = output.read_text(encoding="utf-8", errors="replace").strip()
    finally:
        output.unlink()
    if outcome.exit_code == 0:
        return ""
    ending = outcome.setup_error or outcome.limit or f"exit code {outcome.exit_code}, signal {outcome.signal}"
    return printable("; ".join(said.splitlines()[-3:]) or ending)
