"""How engine programs say what is missing or wrong."""

from __future__ import annotations

import pytest

from orchestrator.engines import start
from orchestrator.engines.serve import Model
from orchestrator.errors import Failed


def raising(error: BaseException) -> Model:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            ModuleNotFoundError("no", name="xyz"),
            78,
            "the package xyz is missing\n  fix: pip install 'sia-orchestrator[xy]'",
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
