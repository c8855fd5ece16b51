"""The user's repository of a sample home: a small agent, tasks, and branches that became generations."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.watch.sample_text import SCHEMA, instruction

SETTINGS = """[agent]
build_environments = true

[engines.demo]
command = ["python", "-m", "orchestrator.engines.scripted", "policy.toml"]

[main]
engine = "demo"
"""
CAMPAIGN = 'candidates = ["careful-reader", "fewer-tokens"]\ntasks = ["tasks/*"]\nrepeats = 2\nengine = "demo"\n'
MAIN = '''"""The agent's loop."""

from instance.memory import shown

LIMIT = 500  # characters of each output that are shown


def run(engine, memory):
    """Ask, act, remember, until stopped."""
    while True:
        action = engine.ask(shown(memory, LIMIT))
        if action.name == "stop":
            return 0
        memory.append(action.run())
'''
MEMORY = '''"""What the agent remembers."""


def shown(memory, limit):
    """The newest outputs, each cut to `limit` characters."""
    return [text[:limit] for text in memory]
'''
FILES = {
    "sia.toml": SETTINGS,
    "campaign.toml": CAMPAIGN,
    "policy.toml": '[[rule]]\nwhen = "true()"\nanswer = "<stop/>"\n',
    "README.md": "A repository whose agent improves itself.\n",
    "action_schema.xsd": SCHEMA,
    "instance/__init__.py": "",
    "instance/__main__.py": MAIN,
    "instance/memory.py": MEMORY,
    "instance/requirements.txt": "",
    "procedures/system_prompt.md": "You are an agent. Answer with one action.\n",
    "tools/search.py": "print('nothing found')\n",
}
# Branch: (the one that it starts from, its message, path → (old text, new text)).
BRANCHES: dict[str, tuple[str, str, dict[str, tuple[str, str]]]] = {
    "show-more": ("main", "Show 5,000 characters of each output", {"instance/__main__.py": ("= 500 ", "= 5000 ")}),
    "worse": ("main", "Show 20 characters of each output", {"instance/__main__.py": ("= 500 ", "= 20 ")}),
    "cheater": ("main", "Tidy the log", {"instance/memory.py": ("agent remembers", "agent remembers, or says so")}),
    "trim-logs": (
        "show-more",
        "Keep only the newest hundred outputs",
        {"instance/memory.py": ("in memory]", "in memory[-100:]]")},
    ),
    "careful-reader": (
        "show-more",
        "Ask for a second look before writing",
        {
            "procedures/system_prompt.md": ("one action.\n", "one action.\nCheck what you wrote before you stop.\n"),
            "instance/memory.py": ("text[:limit]", "text[: limit // 2] + text[-limit // 2 :]"),
        },
    ),
    "fewer-tokens": ("show-more", "Show 2,000 characters", {"instance/__main__.py": ("= 5000 ", "= 2000 ")}),
}


class Checkout:
    """The repository below `root`; commits are dated by hand, so that they always have the same ids."""

    def __init__(self, root: Path, tasks: Sequence[str]) -> None:
        self.root = root
        for name, content in FILES.items():
            self._write(name, content)
        for task in tasks:
            self._write(f"tasks/{task}/instruction.md", instruction(task) + "\n")
            self._write(f"tasks/{task}/task.toml", "")
            self._write(f"tasks/{task}/environment/start.txt", "start\n")
            self._write(f"tasks/{task}/tests/test.sh", "echo 1 > /logs/verifier/reward.txt\n")
            self._write(f"tasks/{task}/solution/solve.sh", "true\n")
        self._git("init", "-q", "-b", "main")

    def begin(self, moment: float) -> None:
        """The first commit."""
        self._commit("The agent", moment)

    def branch(self, name: str, moment: float) -> None:
        """One of BRANCHES."""
        base, message, changes = BRANCHES[name]
        self._git("checkout", "-q", "-b", name, base)
        for path, (old, new) in changes.items():
            text = (self.root / path).read_text(encoding="utf-8")
            assert old in text, f"{name}: {old!r} is not in {path}"
            self._write(path, text.replace(old, new))
        self._commit(message, moment)
        self._git("checkout", "-q", "main")

    def _write(self, name: str, content: str) -> None:
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")

    def _commit(self, message: str, moment: float) -> None:
        self._git("add", "-A")
        date = f"@{int(moment)} +0000"
        self._git("commit", "-q", "-m", message, env={"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date})

    def _git(self, *words: str, env: dict[str, str] | None = None) -> None:
        settings = ("user.name=Sample", "user.email=sample@example.org", "commit.gpgsign=false", "gc.auto=0")
        command = ["git", *(word for setting in settings for word in ("-c", setting)), *words]
        subprocess.run(command, cwd=self.root, check=True, capture_output=True, env={**os.environ, **(env or {})})
