"""What the story needs: a throw-away repository in which one trial will hang, and a terminal that a test can read.

The candidate `better` writes what the tasks want. The candidate `follower` does too, but in one of them it follows a
file that never grows: that trial hangs until its limit, minutes later, unless somebody kills it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from orchestrator import processes
from tests.orchestrator.campaigns import CARE, PROMPT, Workplace

HANGS = "task3"
FOLLOW = "Follow every file to its end."
POLICY = f"""
[[rule]]
when = "@stdin > 0"
answer = "<read_stdin/>"
[[rule]]
when = "read_stdin[contains(text(), 'Write 42')]"
  [[rule.rule]]
  when = "not(single) and contains($system, 'Follow') and read_stdin[contains(text(), '{HANGS}')]"
  answer = '<single timeout="3000">tail -f start.txt</single>'
  [[rule.rule]]
  when = "not(single) and (contains($system, 'Take care') or contains($system, 'Follow'))"
  answer = "<single>echo 42 > answer; cat answer</single>"
  [[rule.rule]]
  when = "not(single)"
  answer = "<single>echo 41 > answer; cat answer</single>"
  [[rule.rule]]
  when = "true()"
  answer = "<stop/>"
[[rule]]
when = "reasoning"
answer = '<delete id="{{id}}"/>'
faults = {{ stall = 1.0, stall_sec = 0.2 }}
[rule.let]
id = "reasoning/@id"
[[rule]]
when = "true()"
answer = "<reasoning>Nothing to do yet.</reasoning>"
faults = {{ stall = 1.0, stall_sec = 0.2 }}
"""
SETTINGS = """
[agent]
build_environments = true
[engines.test]
command = ["python", "-P", "-m", "orchestrator.engines.scripted", "policy.toml"]
[main]
engine = "test"
steady_sec = 1
[promotion]
policy = "ask"
healthy_iterations = 2
timeout_sec = 30
"""
CAMPAIGN = """
seed = 3
candidates = ["better", "follower"]
tasks = ["tasks/*"]
engine = "test"
parallel = 2
[limits]
iterations = 20
seconds = 600
[verdict]
tolerance = { tokens = 3.0, seconds = 20.0 }
"""
TASKS = 7  # the fewest that can show `better` of two candidates
COLUMNS, LINES = 80, 24


class Stage(Workplace):
    """The repository, with the campaign file written and the candidates committed."""

    def __init__(self, directory: Path, environments: Path) -> None:
        super().__init__(directory, environments, tasks=TASKS)
        for number in range(TASKS):
            self.write(f"tasks/task{number}/instruction.md", f"Write 42 into answer. (task{number})\n")
        self.write("policy.toml", POLICY)
        self.write("sia.toml", SETTINGS)
        self.write("campaign.toml", CAMPAIGN)
        self.commit("the story")
        self.branch("better", {PROMPT: CARE + "\n"})
        self.branch("follower", {PROMPT: FOLLOW + "\n"})


class Terminal:
    """A tmux server of our own. Screens are read as a person sees them; nothing sleeps, everything waits for a text."""

    def __init__(self, place: Path, directory: Path, environment: Mapping[str, str]) -> None:
        self._command = ["tmux", "-S", str(place / "tmux.sock"), "-f", "/dev/null"]
        self._directory = directory
        self._environment = {**environment, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "LANG": "C.UTF-8"}
        self._environment.pop("TMUX", None)
        self.pids: list[int] = []

    def start(self, name: str, *argv: str, columns: int = COLUMNS, lines: int = LINES) -> None:
        """A program in a session of its own; the session stays when it ends, so that its last words can be read."""
        size = ("-x", str(columns), "-y", str(lines))
        self._tmux("-u", "new-session", "-d", "-s", name, *size, "-c", str(self._directory), "sleep 3600")
        self._tmux("set-option", "-g", "status", "off")
        self._tmux("set-option", "-g", "remain-on-exit", "on")
        self._tmux("set-option", "-g", "default-terminal", "tmux-256color")
        self._tmux("respawn-pane", "-k", "-t", name, "-c", str(self._directory), *argv)
        self.pids.append(int(self._tmux("display-message", "-p", "-t", name, "#{pane_pid}")))

    def keys(self, name: str, *keys: str) -> None:
        """Keys as tmux names them: `Enter`, `Escape`, `Down`, `C-c`, or a letter."""
        self._tmux("send-keys", "-t", name, *keys)

    def type(self, name: str, text: str) -> None:
        """A text, letter by letter."""
        self._tmux("send-keys", "-t", name, "-l", text)

    def screen(self, name: str, *, colours: bool = False) -> str:
        """What can be seen now."""
        return self._tmux("capture-pane", "-p", *(("-e",) if colours else ()), "-t", name)

    def resize(self, name: str, columns: int, lines: int) -> None:
        """As if the person dragged the window."""
        self._tmux("resize-window", "-t", name, "-x", str(columns), "-y", str(lines))

    def wait(self, name: str, *texts: str, seconds: float = 30.0, gone: str = "") -> str:
        """The screen, once all these texts can be seen on it (and `gone` can't)."""
        return self.until(
            name, lambda screen: all(t in screen for t in texts) and not (gone and gone in screen), seconds, str(texts)
        )

    def until(self, name: str, condition: Callable[[str], bool], seconds: float = 30.0, what: str = "") -> str:
        """The screen, once the condition holds of it. The last screen is in the failure's message."""
        deadline = time.monotonic() + seconds
        while True:
            screen = self.screen(name)
            if condition(screen):
                return screen
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds:g} s for {what}; the screen of {name} is:\n{screen}")
            time.sleep(0.05)

    def flags(self, name: str) -> str:
        """`0 1` as a shell has it: not on the alternate screen, and the cursor can be seen."""
        return self._tmux("display-message", "-p", "-t", name, "#{alternate_on} #{cursor_flag}")

    def ended(self, name: str, seconds: float = 20.0) -> int:
        """The exit code, once the program has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            shown = self._tmux("display-message", "-p", "-t", name, "#{pane_dead},#{pane_dead_status},#{pid}")
            dead, code, server = shown.split(",")
            if dead == "1" and code:  # the terminal may be closed a moment before the program has ended
                return int(code)
            if dead == "1":
                _signal(int(server), signal.SIGCHLD)  # tmux 3.3a can miss one: the program has ended, and nobody asks
            time.sleep(0.05)
        raise AssertionError(f"{name} has not ended after {seconds:g} s; its screen is:\n{self.screen(name)}")

    def close(self) -> None:
        """End every program in order, then the server."""
        for pid in self.pids:
            _signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and any(processes.started(pid) for pid in self.pids):
            time.sleep(0.05)
        subprocess.run([*self._command, "kill-server"], capture_output=True, env=self._environment, check=False)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            [*self._command, *words], capture_output=True, text=True, env=self._environment, check=False, timeout=20
        )
        assert done.returncode == 0, f"tmux {' '.join(words)}: {done.stderr}"
        return done.stdout.rstrip("\n")


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def no_tmux() -> str:
    """Why there is no tmux to test with; "" if there is."""
    return "" if shutil.which("tmux") else "tmux is not installed: apt-get install tmux"


@contextmanager
def terminal(directory: Path, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """A terminal whose programs run in `directory`; all of them are gone at the end."""
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="sia-tmux-"))  # a socket's path must be short
        opened = Terminal(Path(place), directory, environment)
        stack.callback(opened.close)
        yield opened
