"""A real agent repository in a temporary directory, made by the git that people have."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.config import Settings
from orchestrator.home import Home, open_home
from orchestrator.repository import Repository

FILES = {
    "instance/__init__.py": "",
    "instance/__main__.py": "from instance.text import GREETING\n\nprint(GREETING)\n",
    "instance/text.py": "".join(f"LINE_{n} = {n}\n" for n in range(40)) + "GREETING = 'hello'\n",
    "instance/requirements.txt": "# nothing\n",
    "procedures/system.md": "Work.\n",
    "tools/show": "#!/bin/sh\necho shown\n",
    "action_schema.xsd": "<schema/>\n",
    "README.md": "An agent.\n",
    "tests/hidden.txt": "the answer\n",
}


@dataclass
class AgentRepo:
    """A checkout of an agent, and SIA's state for it."""

    path: Path
    settings: Settings = field(default_factory=Settings)

    def git(self, *arguments: str) -> str:
        """Run git in it, as its owner would."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.path.parent),
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C",
        }
        environment |= {f"GIT_{role}_{key}": "a" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
        done = subprocess.run(
            ["git", *arguments], cwd=self.path, env=environment, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def write(self, files: Mapping[str, str | None]) -> None:
        """Write files (None removes one)."""
        for name, content in files.items():
            target = self.path / name
            if content is None:
                target.unlink()
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content)

    def commit(self, files: Mapping[str, str | None], message: str = "change") -> str:
        """Write files and commit everything."""
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def branch(self, name: str, files: Mapping[str, str | None], start: str = "trunk") -> str:
        """A branch with one commit; the checkout goes back to trunk."""
        self.git("checkout", "--quiet", "-b", name, start)
        commit = self.commit(files, f"{name}: change")
        self.git("checkout", "--quiet", "trunk")
        return commit

    @property
    def home(self) -> Home:
        """Its opened home."""
        return open_home(self.path)

    @property
    def repository(self) -> Repository:
        """The supervisor's repository, made from the checkout's HEAD."""
        return Repository(self.home).ensure()


def make_agent_repo(path: Path, *options: str) -> AgentRepo:
    """A repository with a first commit on `trunk`."""
    path.mkdir(parents=True)
    repo = AgentRepo(path)
    repo.git("init", "--quiet", "--initial-branch=trunk", *options)
    repo.write(FILES)
    (path / "tools" / "show").chmod(0o755)
    repo.commit({}, "first")
    return repo


@pytest.fixture
def agent_repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentRepo:
    """A fresh agent repository; SIA's state lies in its `.sia/`."""
    monkeypatch.delenv("SIA_HOME", raising=False)
    return make_agent_repo(tmp_path / "agent")


def show(capsys: pytest.CaptureFixture[str], error: BaseException) -> None:
    """Print the message that a person gets."""
    with capsys.disabled():
        print(f"\n  {error}")


def digest(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a directory (`.sia` aside) with mode, time and content: equal = nothing was written."""
    found = {}
    for directory, names, files in os.walk(root):
        if ".sia" in names:
            names.remove(".sia")
        for name in [*names, *files]:
            path = Path(directory, name)
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path.relative_to(root))] = (status.st_mode, status.st_mtime_ns, content)
    return found
