"""Pid 1 of every sandbox: a copy of the host's small shell, and the script that it runs.

The copy has mode 0111. What can't be read is made non-dumpable by the kernel, so `/proc/1/environ`, `mem` and `fd`
are closed to everything inside. It tells the supervisor `ready`, waits for `go` (and ends on EOF, when the supervisor
is gone), runs the command in the foreground (a background job would lose stdin and ignore INT and QUIT), and reports
its exit status. The kernel stamps each message with the sender's pid (SO_PASSCRED): this is how the supervisor learns
the pids of pid 1 and of the command, without trusting anybody.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sandbox.errors import CannotIsolate

PATH = "/runner"
SHELLS = ("dash", "bash", "busybox")  # by start-up time


def find_shell() -> Path:
    """The shell to copy. Raises CannotIsolate if there is none."""
    for name in SHELLS:
        found = shutil.which(name, path="/usr/bin:/bin")
        if found:
            return Path(found).resolve()
    raise CannotIsolate("no shell for pid 1 of a sandbox", where="/usr/bin", fix="install dash (or bash)")


def script(control: int, stderr: int, processes: int | None) -> str:
    """The script. `control` and `stderr` are descriptors 3…9: dash knows no others.

    RLIMIT_NPROC is set here, since a limit set before the user namespace exists counts the user's other processes.
    Shells differ in the letter: -p in dash and busybox, -u in bash.
    """
    limit = f"ulimit -p {processes} 2>/dev/null || ulimit -u {processes} || exit 125\n" if processes else ""
    return (
        f"echo ready >&{control}\n"
        f'read -r go <&{control} && [ "$go" = go ] || exit 125\n'
        f"{limit}"
        f'(echo run >&{control}; exec "$@" 2>&{stderr} {stderr}>&- {control}>&-)\n'
        f"echo exit $? >&{control}\n"
        "exit 0"
    )


def argv(shell: Path, text: str, command: tuple[str, ...]) -> list[str]:
    """Command line of pid 1; `$0` is a neutral word, since shells show it in messages."""
    applet = ["sh"] if shell.name == "busybox" else []
    return [PATH, *applet, "-c", text, "sandbox", *command]
