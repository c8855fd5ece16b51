"""Running something inside, in one call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.host import Host
from sandbox.process import Outcome, Sandbox
from sandbox.spec import Limits, Overlay, SandboxSpec

Inside = Callable[..., tuple[Outcome, str]]


@pytest.fixture
def inside(host: Host) -> Inside:
    """`inside(script, python=False, **fields of SandboxSpec)`: the outcome, and stdout + stderr as text."""

    def run(script: str, *, python: bool = False, **fields: object) -> tuple[Outcome, str]:
        command = (sys.executable, "-I", "-c", script) if python else ("sh", "-c", script)
        values: dict[str, object] = {"command": command, "workdir": "/tmp", "limits": Limits(seconds=60), **fields}
        if python:
            values["python"] = Path(sys.executable)
        spec = SandboxSpec(**values)  # type: ignore[arg-type]
        read, write = os.pipe()
        with open(read, "rb") as output:
            sandbox = Sandbox.start(host, spec, stdout=write, stderr=write)
            os.close(write)
            with sandbox:
                text = output.read().decode("utf-8", "replace")
                outcome = sandbox.wait(60)
        assert outcome is not None
        return outcome, text

    return run


@pytest.fixture
def overlay(host: Host, tmp_path: Path) -> Callable[..., Overlay]:
    """`overlay(dest, {name: text}, lowers=…)`: a fresh overlay over files of the sandbox's user."""

    def make(
        dest: str = "/app", files: dict[str, str] | None = None, lowers: tuple[Path, ...] | None = None
    ) -> Overlay:
        name = f"{len(list(tmp_path.iterdir()))}"
        if lowers is None:
            lower = tmp_path / f"lower{name}"
            lower.mkdir()
            for path, text in (files or {}).items():
                (lower / path).parent.mkdir(parents=True, exist_ok=True)
                (lower / path).write_text(text)
            host.own(lower)
            lowers = (lower,)
        upper, work = host.make_upper(tmp_path / f"uppers{name}", "one")
        return Overlay(dest, lowers, upper, work)

    return make
