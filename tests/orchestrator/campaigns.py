"""A small repository with the real agent, six tiny tasks and a scripted engine, and `sia` run in it as a process.

The engine writes the right answer only where the system prompt asks for care: so a change of `procedures/` has a real
effect on the reward, and the verdicts are known beforehand.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).parents[2]
AGENT_PATHS = ("instance", "procedures", "tools", "action_schema.xsd")
PROMPT = "procedures/system_prompt.md"
CARE = "Take care: check every answer."
POLICY = """
[[rule]]
when = "@stdin > 0 and not(read_stdin)"
answer = "<read_stdin/>"
[[rule]]
when = "not(single) and contains($system, 'Take care')"
answer = "<single>echo 42 > answer</single>"
[[rule]]
when = "not(single)"
answer = "<single>echo 41 > answer</single>"
[[rule]]
when = "true()"
answer = "<stop/>"
"""
TEST = 'if [ "$(cat answer 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
FILE = """
seed = 3
candidates = {candidates}
tasks = ["tasks/*"]
repeats = {repeats}
engine = "test"
[limits]
iterations = 10
seconds = 30
[verdict]
tolerance = {{ tokens = 3.0 }}
"""


class Workplace:
    """A user's repository below `directory`; `sia` runs the command line there."""

    def __init__(self, directory: Path, environments: Path, tasks: int = 6) -> None:
        self.root = directory / "repo"
        self.root.mkdir()
        self.state = self.root / ".sia"
        self.state.mkdir()
        (self.state / "envs").symlink_to(environments)
        for name in AGENT_PATHS:
            source, target = REPOSITORY / name, self.root / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, target)
        self.write(
            "sia.toml",
            "[agent]\nbuild_environments = true\n[engines.test]\ncommand = "
            '["python", "-m", "orchestrator.engines.scripted", "policy.toml"]\n',
        )
        self.write("policy.toml", POLICY)
        for number in range(tasks):
            self.task(f"task{number}")
        self.git("init", "-q", "-b", "main")
        self.commit("start")

    def write(self, path: str, content: str) -> Path:
        """A file of the checkout."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
        return target

    def task(self, name: str, test: str = TEST) -> None:
        """A task that wants 42 in `answer`."""
        self.write(f"tasks/{name}/instruction.md", "Write 42 into answer.\n")
        self.write(f"tasks/{name}/task.toml", "")
        self.write(f"tasks/{name}/environment/start.txt", "start\n")
        self.write(f"tasks/{name}/tests/test.sh", test)
        self.write(f"tasks/{name}/solution/solve.sh", "echo 42 > answer\n")

    def git(self, *arguments: str) -> str:
        """Ordinary git in the checkout, as its owner would run it."""
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=self.root, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, message: str) -> None:
        """Everything that has changed."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)

    def branch(self, name: str, changes: dict[str, str]) -> None:
        """A candidate: these files changed (text is appended to the system prompt, else it is the new content)."""
        self.git("switch", "-q", "-c", name, "main")
        for path, content in changes.items():
            before = (self.root / path).read_text(encoding="utf-8") if path == PROMPT else ""
            self.write(path, before + content)
        self.commit(name)
        self.git("switch", "-q", "main")

    def campaign_file(self, *candidates: str, repeats: int = 1, extra: str = "") -> Path:
        """`campaign.toml` with these candidates; `extra` goes before the tables."""
        return self.write("campaign.toml", extra + FILE.format(candidates=json.dumps(candidates), repeats=repeats))

    def command(self, *arguments: str) -> list[str]:
        """The argv list of `sia …`."""
        return [sys.executable, "-m", "orchestrator", *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        """Variables for it."""
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1", "COLUMNS": "160", **more}

    def sia(self, *arguments: str, code: int | None = 0, timeout: float = 200) -> subprocess.CompletedProcess[str]:
        """Run it to its end; fails when the exit code is not `code`."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert code is None or done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Run it in the background, in a process group of its own."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.root,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def shown(self, campaign: str = "last") -> dict[str, Any]:
        """`sia campaign show --json`."""
        return dict(json.loads(self.sia("campaign", "show", campaign, "--json").stdout))

    def verdicts(self, campaign: str = "last") -> dict[str, str]:
        """Candidate → verdict."""
        return {arm: v["verdict"] for arm, v in self.shown(campaign)["verdicts"].items()}


def children(process: int) -> list[psutil.Process]:
    """Everything that a process has started and that still runs, at any depth."""
    return psutil.Process(process).children(recursive=True)


def gone(family: list[psutil.Process], place: Workplace, seconds: float = 5.0) -> list[str]:
    """What of these processes, and of mounts below the workplace in any process, is there after `seconds`.

    Zombies that nobody reaps count as gone: a container's pid 1 may not reap.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = [f"process {p.pid} {_words(p)}" for p in family if _runs(p)] + _mounts(place)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def untouched(place: Workplace) -> str:
    """A digest of the checkout: every name, mode and content but `.sia`."""
    digest = hashlib.sha256()
    for path in sorted(place.root.rglob("*")):
        if place.state in (path, *path.parents):
            continue
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        digest.update(f"{path} {path.lstat().st_mode} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return ""


def _mounts(place: Workplace) -> list[str]:
    found = []
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            if str(place.root.parent) in table.read_text():
                found.append(f"a mount in process {table.parent.name}")
        except OSError:
            continue  # ended meanwhile, or another user's
    return found
