"""How engine programs say what is missing or wrong."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from orchestrator.engines import extras, start
from orchestrator.engines.serve import Model
from orchestrator.errors import Failed

SETUP = Path(__file__).resolve().parents[3] / "scripts" / "setup"


def raising(error: BaseException) -> Model:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ModuleNotFoundError("no", name="xyz"),
            78,
            f"the package xyz is missing\n  fix: {shlex.quote(str(SETUP))} xy",
        ),
        (Failed("it went wrong", fix="mend it"), 1, "it went wrong\n  fix: mend it"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_a_person_reads(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert start.run("xy", ("xyz",), lambda: raising(error)) == code
    assert capsys.readouterr().err.strip() == (f"xy engine: {said}" if said else "")


def test_a_module_of_ours_that_is_missing_is_a_fault_of_ours() -> None:
    with pytest.raises(ModuleNotFoundError):
        start.run("xy", ("xyz",), lambda: raising(ModuleNotFoundError("no", name="orchestrator.nothing")))


def test_an_installed_package_has_no_setup_to_run(tmp_path: Path) -> None:
    assert extras.install("xy", tmp_path / "setup") == "pip install 'sia-orchestrator[xy]'"
    (tmp_path / "set up").touch()
    assert extras.install("xy", tmp_path / "set up") == f"'{tmp_path}/set up' xy"
