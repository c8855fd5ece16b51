"""The demo's repository: made from HEAD, branches from patches, folders of earlier demos removed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator import locks
from orchestrator.demo.stage import CANDIDATES, build, prune
from orchestrator.errors import ConfigError
from orchestrator.home import Home

TOP = Path(__file__).parents[2]


def git(repo: Path, *arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=repo, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    root = tmp_path / "state"
    root.mkdir()
    return Home(root, TOP)


def test_the_repository_is_made_of_head_and_the_patches(home: Home) -> None:
    with build(home) as stage:
        assert git(stage.repo, "status", "--porcelain") == ""
        assert git(stage.repo, "rev-parse", "--abbrev-ref", "HEAD") == "main"
        for name in CANDIDATES:
            assert git(stage.repo, "merge-base", "main", name) == git(stage.repo, "rev-parse", "main")
            changed = git(stage.repo, "diff", "--name-only", "main", name).split()
            assert changed and all(path.startswith(("instance/", "procedures/")) for path in changed)
        assert "500" in git(stage.repo, "diff", "main~", "main")
        assert (stage.state / "envs").resolve() == home.environments


def test_earlier_folders_are_removed_whatever_lies_in_them(mode: str, home: Home) -> None:
    old = home.root / "demo-20200102-030405"
    (old / "work" / "work" / "inner").mkdir(parents=True)
    (old / "export").mkdir()
    (old / "export" / "file").write_text("x")
    (old / "export").chmod(0o555)
    (old / "work" / "work").chmod(0)
    (home.root / "demo-of-somebody").mkdir()
    running = home.root / "demo-20200102-030406"
    running.mkdir()
    with locks.hold(running / "lock", "it runs", "wait"):
        prune(home)
    assert not old.exists()
    assert running.exists()
    assert (home.root / "demo-of-somebody").exists()


@pytest.mark.bad_input
def test_bad_input_demo_without_examples(home: Home, tmp_path: Path) -> None:
    repo = tmp_path / "other"
    repo.mkdir()
    git(repo, "init", "--quiet")
    (repo / "agent.py").write_text("")
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "--message", "first")
    with pytest.raises(ConfigError) as error, build(Home(home.root, repo)):
        pass
    print(error.value.render())
    assert "examples/candidates/baseline.patch" in error.value.render()
