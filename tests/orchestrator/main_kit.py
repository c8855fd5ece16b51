"""A repository with the standard agent and a scripted engine, and `sia` as a person runs it there: real processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from orchestrator import candidates, database
from orchestrator.config import load_settings
from orchestrator.environments import agent_environment
from orchestrator.generations import Ledger, Standing
from orchestrator.home import Home, open_home
from orchestrator.promotion import ensure_first
from orchestrator.repository import Repository
from orchestrator.supervisor_lock import holder

TOP = Path(__file__).parents[2]
AGENT = ("instance", "procedures", "tools", "action_schema.xsd")
SIA = (sys.executable, "-P", "-m", "orchestrator")

# It keeps what it reads, and does next to nothing else, ten times a second.
POLICY = """
[faults]
stall = 1.0
stall_sec = 0.05
[[rule]]
when = "@stdin > 0"
answer = "<read_stdin/>"
[[rule]]
when = "read_stdin[contains(text(), 'please stop')]"
answer = "<stop/>"
[[rule]]
when = "not(single[contains(text(), 'marker')])"
answer = "<single>date > /app/marker; cat /app/marker</single>"
[[rule]]
when = "reasoning"
answer = '<delete id="{id}"/>'
[rule.let]
id = "reasoning/@id"
[[rule]]
when = "true()"
answer = "<reasoning>nothing to do</reasoning>"
"""

SETTINGS = """
[agent]
build_environments = true
[engines.test]
command = ["python", "-P", "-m", "orchestrator.engines.scripted", "policy.toml"]
[main]
engine = "test"
steady_sec = {steady}
[promotion]
policy = "{policy}"
healthy_iterations = {healthy}
timeout_sec = {timeout}
restart_sec = {restart}
boot_pause_sec = {pause}
"""

# Lines put at the top of instance/__main__.py: a candidate that is fine until it finds what main's work left.
BRITTLE = """import os, sys
if os.path.exists("/app/marker"):
    print("brittle:\x1b[2J I can't work here", file=sys.stderr)
    sys.exit(3)
"""


class MainKit:
    """One repository below `directory`, its `.sia`, and the `sia` processes that a test starts there."""

    def __init__(
        self,
        directory: Path,
        environments: Path,
        *,
        policy: str = "ask",
        healthy: int = 2,
        timeout: float = 20,
        restart: float = 30,
        steady: float = 0.2,
        pause: float = 0.05,
    ) -> None:
        """`healthy` … `pause` are settings of sia.toml, times in seconds."""
        self.repo = directory / "repo"
        for name in AGENT:
            if (TOP / name).is_dir():
                shutil.copytree(TOP / name, self.repo / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(TOP / name, self.repo / name)
        self.write("policy.toml", POLICY)
        values = {"policy": policy, "healthy": healthy, "timeout": timeout, "restart": restart}
        values |= {"steady": steady, "pause": pause}
        self.write("sia.toml", SETTINGS.format(**values))
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "first")
        self.home: Home = open_home(self.repo)
        self.home.environments.symlink_to(environments)
        agent_environment(self.home, (self.repo / "instance/requirements.txt").read_bytes(), build=True)
        self.log = directory / "supervise.log"
        self.out = directory / "main.out"
        self.campaigns = 0

    def write(self, name: str, text: str) -> None:
        (self.repo / name).parent.mkdir(parents=True, exist_ok=True)
        (self.repo / name).write_text(text)

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
        done = subprocess.run(["git", *who, *words], cwd=self.repo, check=True, capture_output=True, text=True)
        return done.stdout

    def branch(self, name: str, top: str = "", procedure: str = "") -> None:
        """A candidate from the checkout's main: `top` goes before instance/__main__.py, `procedure` to a text."""
        self.git("checkout", "-q", "-B", name, "main")
        main = (self.repo / "instance/__main__.py").read_text()
        if top:
            self.write("instance/__main__.py", top + main.replace("from __future__ import annotations\n", ""))
        self.write(f"procedures/{name}.md", procedure or f"{name}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", name)
        self.git("checkout", "-q", "main")

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        with closing(database.connect(self.home.database)) as connection:
            yield connection

    def standing(self) -> Standing:
        with self.database() as connection:
            return Ledger(connection).standing()

    def head(self) -> str:
        return Repository(self.home).head()

    def judge(self, name: str, verdict: str = "better", difference: float = 0.5) -> str:
        """Record a campaign with this verdict against the current generation. Returns its id."""
        settings = load_settings(self.repo)
        self.campaigns += 1
        campaign = f"c{self.campaigns:04d}"
        with self.database() as connection:
            baseline = ensure_first(self.home, settings, connection).commit
            made = candidates.prepare(Repository(self.home), settings, name, baseline)
            now = time.time()
            connection.execute(
                "INSERT INTO campaign (id, created, finished, file, spec, baseline, state)"
                " VALUES (?, ?, ?, 'campaign.toml', '{}', ?, 'done')",
                (campaign, now, now, baseline),
            )
            connection.execute(
                "INSERT INTO arm (campaign, name, role, proposed, judged, tree) VALUES (?, ?, 'candidate', ?, ?, ?)",
                (campaign, name, made.proposed, made.judged, made.tree),
            )
            numbers = json.dumps({"difference": difference})
            connection.execute("INSERT INTO verdict VALUES (?, ?, ?, ?)", (campaign, name, verdict, numbers))
        return campaign

    # -- processes ----------------------------------------------------------------------------------------------------

    def env(self, fault: str | None = None) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if key not in ("SIA_HOME", "SIA_FAULT")}
        env["PYTHONPATH"] = str(TOP)
        return {**env, "SIA_FAULT": fault} if fault else env

    def sia(self, *words: str, fault: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        return subprocess.run(
            [*SIA, *words], cwd=self.repo, env=self.env(fault), capture_output=True, text=True, timeout=timeout
        )

    @contextmanager
    def supervise(self, fault: str | None = None, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """`sia supervise` in the background; stopped in order at the end if it still runs."""
        with self.out.open("ab") as out, self.log.open("ab") as log:
            process = subprocess.Popen(
                [*SIA, *(words or ("supervise",))],
                cwd=self.repo,
                env=self.env(fault),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise

    def until(self, what: str, condition: Callable[[], Any], timeout: float = 60) -> Any:
        """Wait for a condition; the supervisor's log is part of the failure."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        log = self.log.read_text() if self.log.exists() else ""
        raise AssertionError(f"waited {timeout} s for {what}; the supervisor said:\n{log[-4000:]}")

    def launch(self) -> sqlite3.Row | None:
        """The start of main that runs now."""
        with self.database() as connection:
            query = "SELECT * FROM launch WHERE finished IS NULL ORDER BY started DESC LIMIT 1"
            found: sqlite3.Row | None = connection.execute(query).fetchone()
            return found

    def works(self, valid: int = 2) -> bool:
        """Whether main runs and has completed iterations."""
        if not self.home.database.exists():
            return False
        try:
            launch, held = self.launch(), holder(self.home)
        except sqlite3.OperationalError:  # not migrated yet
            return False
        return bool(launch and held and launch["started"] >= held.since and launch["valid"] >= valid)

    def events(self, kind: str) -> list[str]:
        """Texts of the event log, oldest first."""
        with self.database() as connection:
            rows = connection.execute("SELECT text FROM event WHERE kind = ? ORDER BY id", (kind,))
            return [row["text"] for row in rows]

    def heard(self) -> list[str]:
        """Messages `m1`, `m2`… that the agent has read and keeps."""
        return re.findall(r"m\d+(?=\n|\s|&|<|$)", self.state_text())

    def signal_main(self, signum: int) -> None:
        """A signal to every agent process of the running sandbox (SIGKILL is what the kernel does without memory)."""
        agents = list(_processes(lambda words, _: words[1:4] == [b"-P", b"-m", b"instance"]))
        victims = [pid for pid in agents if self._below_supervisor(pid)]
        assert victims
        for victim in victims:
            os.kill(victim, signum)

    def _below_supervisor(self, pid: int) -> bool:
        """Whether a process descends from this kit's supervisor (tests run side by side)."""
        supervisor = int((self.home.run / "supervisor.lock").read_text().split()[0])
        while pid > 1:
            if pid == supervisor:
                return True
            try:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                return False
        return False

    def restart_engine(self) -> None:
        """Kill the engine program; the supervisor starts it again, with the policy that lies there now."""
        for pid in _processes(lambda words, cwd: b"orchestrator.engines.scripted" in words and cwd == self.repo):
            os.kill(pid, signal.SIGKILL)

    def state_text(self) -> str:
        """The agent's saved state, wherever the newest level holds it."""
        with self.database() as connection:
            data = Ledger(connection).data()
        for level in (data.upper, *reversed(data.stack)):
            file = self.home.main / "levels" / str(level) / "data" / "upper" / "state" / "agent.xml"
            if file.exists():
                return file.read_text()
        return ""


def _processes(wanted: Callable[[list[bytes], Path], bool]) -> Iterator[int]:
    """Ids of processes whose command line and directory fit."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words, cwd = (entry / "cmdline").read_bytes().split(b"\0"), (entry / "cwd").readlink()
            except OSError:
                continue
            if wanted(words, cwd):
                yield int(entry.name)


def leftovers(home: Home) -> list[str]:
    """Processes whose command line names this home, and mounts below it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                cwd = str((entry / "cwd").readlink())
            except OSError:
                continue
            if str(home.root) in line or cwd.startswith(str(home.checkout)):
                found.append(f"{entry.name}: {line[:200]} (in {cwd})")
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return found + [line for line in mounts if str(home.root) in line]
