"""A launch, from start to outcome."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sandbox.host import Host
from sandbox.process import Outcome, Sandbox
from sandbox.spec import Overlay, SandboxSpec

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]


def shell(host: Host, script: str, **fields: object) -> tuple[Outcome, str]:
    """Run a shell script inside; the outcome and what it printed."""
    read, write = os.pipe()
    with open(read, "rb") as output:
        spec = SandboxSpec(command=("sh", "-c", script), workdir="/tmp", **fields)  # type: ignore[arg-type]
        with Sandbox.start(host, spec, stdout=write, stderr=write) as sandbox:
            os.close(write)
            text = output.read().decode("utf-8", "replace")
            outcome = sandbox.wait(30)
    assert outcome is not None
    return outcome, text


def test_exit_code_passes(host: Host) -> None:
    outcome, text = shell(host, "echo out; exit 7")
    assert (outcome.exit_code, outcome.signal, outcome.limit, outcome.setup_error) == (7, None, None, None)
    assert text == "out\n"


def test_runs_an_interpreter_at_its_own_path(host: Host) -> None:
    script = f"{sys.executable} -c 'import lxml.etree, sys; print(sys.prefix)'"
    outcome, text = shell(host, script, python=Path(sys.executable))
    assert (outcome.exit_code, text) == (0, f"{sys.prefix}\n")


def test_writes_go_to_the_upper(host: Host, tmp_path: Path) -> None:
    lower = tmp_path / "lower"
    lower.mkdir()
    (lower / "old").write_text("old")
    host.own(lower)
    upper, work = host.make_upper(tmp_path / "state" / "uppers", "one")
    outcome, text = shell(
        host, "cd /app && cat old && echo new > old", overlays=(Overlay("/app", (lower,), upper, work),)
    )
    assert (outcome.exit_code, text) == (0, "old")
    assert (upper / "old").read_text() == "new\n"
    assert (lower / "old").read_text() == "old"
