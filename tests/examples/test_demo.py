"""The demo, really run: its story, and that it writes nothing but its folder below `.sia/`."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.orchestrator import trial_kit

environments = trial_kit.environments
TOP = Path(__file__).parents[2]
DEMO = [sys.executable, "-P", "-m", "orchestrator", "demo"]
STORY = (
    "A throw-away repository",
    "main: Noted. I remember: the tide turns at 14:05; the red key opens gate 3",
    "disqualified",
    "exit code 42",
    "main: You asked me to remember: the tide turns at 14:05; the red key opens gate 3",
    "judged alone against the new generation",
    "rolled back",
    "nothing runs any more",
)


@pytest.fixture
def checkout(tmp_path: Path, environments: Path) -> Path:
    """A clone of this checkout's HEAD commit, owned by whoever runs the test. Short pauses are committed on top."""
    clone = tmp_path / "checkout"
    command = ["git", "-c", "safe.directory=*", "clone", "--quiet", "--no-local", f"file://{TOP}", str(clone)]
    config = tmp_path / "gitconfig"
    config.write_text("[safe]\n\tdirectory = *\n")
    subprocess.run(command, check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": str(config)})
    settings = clone / "sia.toml"
    settings.write_text(settings.read_text().replace("[promotion]\n", "[promotion]\nboot_pause_sec = 0.1\n"))
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, "commit", "--quiet", "-am", "short pauses"], cwd=clone, check=True)
    (clone / ".sia").mkdir()
    (clone / ".sia/envs").symlink_to(environments)
    return clone


def content(root: Path) -> dict[str, str]:
    """Every file below `root` with its mode, time and digest, `.sia` aside."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if name.parts[0] != ".sia":
            status = path.lstat()
            data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(name)] = f"{status.st_mode:o} {status.st_mtime_ns} {hashlib.sha256(data).hexdigest()}"
    return found


def left_running(checkout: Path) -> list[str]:
    """Processes that still have anything to do with the checkout."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = [*(process.info["cmdline"] or ()), process.info["cwd"] or ""]
        if any(str(checkout) in word for word in words):
            found.append(" ".join(words))
    return found


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "SIA_HOME"}


@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_whole_story(mode: str, checkout: Path) -> None:
    before = content(checkout)
    done = subprocess.run(
        DEMO,
        cwd=checkout,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=900,
        check=False,
    )
    text = done.stdout.decode()
    assert done.returncode == 0, text[-6000:]
    position = 0
    for words in STORY:
        assert words in text[position:], (words, text)
        position = text.index(words, position)
    assert "\x1b" not in text  # a pipe is no terminal
    assert content(checkout) == before
    assert sorted(path.name for path in (checkout / ".sia").iterdir() if path.name.startswith("demo-")) != []
    assert left_running(checkout) == []


@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", ["user"], indirect=True)  # how it is stopped does not depend on the rights
def test_ctrl_c_leaves_nothing_running(mode: str, checkout: Path) -> None:
    with subprocess.Popen(
        DEMO, cwd=checkout, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("$ sia campaign run"):
                break
        time.sleep(2)  # trials have started, or are about to
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 130, "".join(said) + rest
    assert "Traceback" not in rest
    assert left_running(checkout) == []
