"""The form of an agent's own log, as the conformance check sees it."""

from __future__ import annotations

import pytest

from orchestrator.conformance_log import form_fault

HEAD = '<iteration system_prompt_hash="0a" action_schema_hash="1b">'
TEXTS = {"texts/0a": "prompt", "texts/1b": "schema"}


def entry(answer: str, head: str = HEAD) -> str:
    return f"{head}\n<context>\n<context/></context><response>{answer}</response></iteration>"


def fault(files: dict[str, str], given: int) -> str:
    log = [(name, content.encode()) for name, content in files.items()]
    return form_fault(["answer"] * given, log) or ""


def test_a_file_for_each_answer() -> None:
    assert fault({**TEXTS, "1.xml": entry("a"), "2.xml": entry("b")}, 2) == ""
    assert fault({**TEXTS, "1.xml": entry("a"), "2.xml": entry("b")}, 3) == "", "the last one may go with the restart"
    assert fault({}, 3) == fault(TEXTS, 3) == "", "no agent has to keep a log"
    assert fault({**TEXTS, "1.xml": "<?xml version='1.0'?>" + entry("a", HEAD.replace('"', "'"))}, 1) == ""


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({**TEXTS, "1.xml": entry("a")}, "1 of 3 answers are logged"),
        ({**TEXTS, "all.xml": f"<log>{entry('a')}{entry('b')}</log>"}, "all.xml holds 2 answers"),
        ({**TEXTS, "1.xml": entry("a", "<iteration>")}, "1.xml is not <iteration system_prompt_hash= action_schema"),
        ({**TEXTS, "1.xml": "<iteration><response>a</response></iteration>"}, "1.xml is not <iteration"),
        ({"texts/0a": "prompt", "1.xml": entry("a")}, "the text behind action_schema_hash='1b' does not lie beside"),
    ],
)
def test_what_is_wrong_is_said(files: dict[str, str], words: str) -> None:
    assert words in fault(files, 3)
