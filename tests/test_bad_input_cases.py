"""Each numbered case of bad input has a test of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bad_input import CASES, number_of

SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py"))


@pytest.mark.parametrize(("title", "parts"), CASES, ids=[str(number) for number in range(1, len(CASES) + 1)])
def test_a_numbered_case_has_a_test(title: str, parts: tuple[str, ...]) -> None:
    names = [part.rpartition("::")[2].partition("[")[0].removeprefix("test_bad_input_") for part in parts]
    assert any(f"def test_bad_input_{name}" in SOURCES or f"_{name}" in SOURCES for name in names), title


def test_a_further_case_has_no_number() -> None:
    assert number_of("tests/orchestrator/test_tasks.py::test_bad_input_special_file") is None
    assert number_of("tests/orchestrator/test_candidates.py::test_bad_input_submodule") == 11
