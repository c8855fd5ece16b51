"""What the given answers were worth, and forged logs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from instance.log import IterationLogger
from orchestrator import answers
from orchestrator.exchanges import ExchangeStore
from orchestrator.journal import Asked, Exchange, Journal
from orchestrator.protocol import escape
from tests.orchestrator.broker_kit import SCHEMA

XS = b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">'


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    store = ExchangeStore(tmp_path / "exchanges")
    yield Journal.create(store, "t", {})
    store.close()
    answers.close_checkers()


def give(journal: Journal, reply: str, *, prefix: str = "", size: int = 100, error: str | None = None) -> Exchange:
    n = journal.entries + 1
    exchange = Exchange(n, 1.0, "infer", Asked(size, "00" * 32, prefix=prefix), reply, 0.1, error=error)
    journal.append(exchange)
    return exchange


def logged(*responses: str) -> list[tuple[str, bytes]]:
    texts = [
        f"<iteration><context><context/></context><response>{escape(one)}</response></iteration>" for one in responses
    ]
    return [(f"{n:08d}.xml", text.encode()) for n, text in enumerate(texts, 1)]


def test_metrics_judge_what_was_given(journal: Journal) -> None:
    for n, reply in enumerate(
        [
            "<single>ls</single>",
            " <single>\n ls </single>\n",  # the same action
            "<single>ls -l</single>",
            "<read_stdin/>",
            "<read_stdin/>",  # asked for again on purpose: no repeat
            '<delete id="a"/>',
            "<delete/>",  # an attribute is missing
            "```xml\n<stop/>\n```",
            "<reasoning>a</reasoning><stop/>",
            "<!DOCTYPE a><stop/>",
            "<unknown/>",
        ]
    ):
        give(journal, reply, size=100 + 10 * n)
    give(journal, "single>pwd</single>", prefix="<", size=210)
    give(journal, "<single>cut o", error="engine died", size=10**6)
    found = answers.metrics(journal, SCHEMA)
    assert (found.answers, found.parse_errors, found.repeated_actions, found.deletes) == (12, 5, 1, 1)
    assert found.context_growth == pytest.approx(10.0)
    assert found.note is None


def test_valid_says_what_a_trial_boot_counts(journal: Journal) -> None:
    assert answers.valid(give(journal, "<stop/>"), SCHEMA)
    assert not answers.valid(give(journal, "<stop>"), SCHEMA)
    assert not answers.valid(give(journal, "<stop/>", error="engine x"), SCHEMA)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (b"", "there is no schema"),
        (b"<a>", "Premature end"),
        (XS + b'<xs:import schemaLocation="http://localhost/x"/></xs:schema>', "<import> is not taken"),
        (XS + b'<xs:include schemaLocation="/etc/passwd"/></xs:schema>', "<include> is not taken"),
        (b'<!DOCTYPE a [<!ENTITY x SYSTEM "/etc/passwd">]>' + XS + b"</xs:schema>", "a DOCTYPE is not taken"),
        (XS + b'<xs:element name="a" type="nope"/></xs:schema>', "nope"),
    ],
)
def test_unfit_schemas_are_named_and_answers_still_checked(journal: Journal, schema: bytes, said: str) -> None:
    assert said in (answers.schema_fault(schema) or "")
    give(journal, "<a/>")
    give(journal, "<a>")
    found = answers.metrics(journal, schema)
    assert found.parse_errors == 1
    assert "only checked for well-formedness" in (found.note or "")


def test_a_hostile_schema_costs_seconds_and_not_the_supervisor() -> None:
    """A pattern whose check never ends: the process dies of its own limit, three times at most."""
    kind = b'<xs:restriction base="xs:string"><xs:pattern value="(a|aa|aaa)*(a|aa)*(a|aaa)*b"/></xs:restriction>'
    element = b'<xs:element name="r"><xs:simpleType>' + kind + b"</xs:simpleType></xs:element></xs:schema>"
    checker = answers.AnswerChecker(XS + element)
    assert (checker.fault, checker.check("<r>aab</r>").error) == (None, None)
    begun = time.monotonic()
    checks = [checker.check("<r>" + "a" * 5000 + "</r>") for _ in range(40)]
    assert {check.error for check in checks} == {"the check took too much time or memory"}
    assert time.monotonic() - begun < 40
    checker.close()


def test_a_checker_that_dies_is_started_again() -> None:
    checker = answers.AnswerChecker(SCHEMA)
    assert checker.check("<stop/>").error is None
    assert checker._process is not None
    checker._process.kill()
    assert checker.check("<stop/>").error is not None
    assert checker.check("<stop/>").error is None
    checker.close()


def test_an_honest_log_passes_in_any_form(journal: Journal, tmp_path: Path) -> None:
    given = ["<stop/>", "  <a>\r\nx</a> ", "\x00\x1b‹U+0041›\ufffe bell\x07", "é" * 500, "", "```xml\n<stop/>\n```"]
    for reply in given:
        give(journal, reply)
    give(journal, "rest</a>", prefix="<a>")
    give(journal, "<single>cut of", error="engine died")
    logger = IterationLogger(tmp_path / "log", "system", "schema")
    for n, reply in enumerate([*given, "<a>rest</a>", "<single>cut of"], 1):
        logger.log_iteration(n, "<context/>", reply)
    files = [(path.name, path.read_bytes()) for path in sorted((tmp_path / "log").glob("*.xml"))]
    assert answers.compare_log(journal, files) == answers.LogComparison(None, ())
    shorter = logged("<stop/>", "rest</a>", "é" * 20, r"\x00\x1b‹U+0041›\ufffe bell\x07", "<stop/>")
    found = answers.compare_log(
        journal, [*shorter, ("texts/abc", b"hello"), ("x.xml", b"<other/>"), ("y.xml", b"\xff")]
    )
    assert found.tampering is None
    assert found.notes == (
        "2 files of the agent's own log have another format",
        "3 of 8 answers are not in the agent's own log",
    )


def test_an_answer_that_nobody_gave_is_tampering(journal: Journal) -> None:
    give(journal, "<single>ls</single>")
    give(journal, "<stop/>")
    evidence = answers.tampering(
        journal, logged("<single>ls</single>", "<single>solve\x1b[2J it</single>".replace("\x1b", "&"))
    )
    assert evidence is not None
    assert "00000002.xml" in evidence and "solve" in evidence
    assert answers.tampering(journal, []) is None
    assert (
        answers.tampering(
            journal, [("bomb", b'<!DOCTYPE a [<!ENTITY b "c">]><iteration><response>&b;</response></iteration>')]
        )
        is None
    )
