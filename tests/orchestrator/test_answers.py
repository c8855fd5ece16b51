"""What the given answers were worth, and forged logs."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from instance.log import IterationLogger
from orchestrator import answers, log_comparison, own_logs
from orchestrator.exchanges import ExchangeStore
from orchestrator.journal import Asked, Exchange, Journal
from orchestrator.protocol import escape
from sandbox.host import _remove_tree
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
    checks = answers.Checks(SCHEMA)
    assert answers.valid(give(journal, "<stop/>"), checks)
    assert not answers.valid(give(journal, "<stop>"), checks)
    assert not answers.valid(give(journal, "<stop/>", error="engine x"), checks)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (b"", "there is no schema"),
        (b"<a>", "Premature end"),
        (XS + b'<xs:import schemaLocation="http://localhost/x"/></xs:schema>', "<import> is not taken"),
        (XS + b'<xs:include schemaLocation="/etc/passwd"/></xs:schema>', "<include> is not taken"),
        (b'<!DOCTYPE a [<!ENTITY x SYSTEM "/etc/passwd">]>' + XS + b"</xs:schema>", "a DOCTYPE is not taken"),
        (
            f'<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a>{XS.decode()}</xs:schema>'.encode("utf-16"),
            "a DOCTYPE is not taken",
        ),
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
    """A pattern whose check never ends: the process dies of its own limit, three times at most, and what one instance
    does with it says nothing about the next."""
    kind = b'<xs:restriction base="xs:string"><xs:pattern value="(a|aa|aaa)*(a|aa)*(a|aaa)*b"/></xs:restriction>'
    element = b'<xs:element name="r"><xs:simpleType>' + kind + b"</xs:simpleType></xs:element></xs:schema>"
    checks = answers.Checks(XS + element)
    assert (checks.fault, checks.check("<r>aab</r>").error) == (None, None)
    begun = time.monotonic()
    found = [checks.check("<r>" + "a" * 5000 + "</r>") for _ in range(40)]
    assert {check.error for check in found} == {"the check took too much time or memory"}
    assert checks.check("<r>aab</r>").error is not None
    assert answers.Checks(XS + element).check("<r>aab</r>").error is None
    assert time.monotonic() - begun < 40
    answers.close_checkers()


def test_an_answer_without_a_canonical_form_is_one_like_others() -> None:
    """A relative namespace, which C14N refuses: allowed by the schema, so valid; equal ones share a key."""
    checker = answers.AnswerChecker(SCHEMA)
    process = checker._process
    one, same, other = (checker.check(f'<{name} xmlns:a="u"/>') for name in ("stop", "stop", "read_stdin"))
    assert (one.error, one.action) == (None, "stop")
    assert one.key == same.key != other.key
    assert checker._process is process
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
        "3 of 8 answers were not found in the agent's own log",
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


@pytest.mark.parametrize(
    "content",
    [
        b"<iteration><response>&lt;stop/&gt;</response><response>forged</response></iteration>",
        "<iteration><response>‹U+0066›org\\x65d</response></iteration>".encode(),
        (
            b"<log><iteration><response>&lt;stop/&gt;</response></iteration><iteration><response>forged</response>"
            b"</iteration></log>"
        ),
        b"<iteration><x/>forged<response><b>for</b>ged</response></iteration>",
    ],
    ids=["second response", "in escapes", "several in one file", "in elements"],
)
def test_a_forged_answer_is_found_wherever_it_stands(journal: Journal, content: bytes) -> None:
    give(journal, "<stop/>")
    assert answers.tampering(journal, [("1.xml", content)]) is not None


def test_empty_answers_in_a_log_stand_for_none(journal: Journal) -> None:
    give(journal, "<stop/>")
    assert answers.compare_log(journal, logged("", " ")).notes == (
        "2 answers in the agent's own log are empty, where none was",
        "1 of 1 answers were not found in the agent's own log",
    )


def test_a_log_of_a_million_elements_takes_no_memory(journal: Journal) -> None:
    give(journal, "<stop/>")
    content = b"<iteration>" + b"<a/>" * 8_000_000 + b"<response>forged</response></iteration>"
    before, begun = _peak_mb(), time.monotonic()
    notes = answers.compare_log(journal, [("1.xml", content)]).notes
    assert notes[0] == "1 files of the agent's own log have another format"
    assert _peak_mb() - before < 64 and time.monotonic() - begun < 5


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_an_answer_in_many_places_is_looked_for_once(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """One inference whose prefix takes long to search, and a log of nothing but searches."""
    give(journal, "", prefix="a" * 4_000_000 + "b")
    one = b"<iteration><response>ab</response></iteration>"
    begun = time.monotonic()
    found = answers.compare_log(journal, [("1.xml", b"<log>" + one * 5000 + b"</log>")])
    assert (found.tampering, found.notes) == (None, ())
    assert time.monotonic() - begun < 10
    many = b"".join(b"<iteration><response>%sb</response></iteration>" % (b"a" * n) for n in range(1, 2000))
    found = answers.compare_log(journal, [("1.xml", b"<log>" + many + b"</log>")])
    said = "the agent's own log was compared in part, the first 20 answers of it: 20 of them have another form"
    assert found.tampering is None and found.notes == (f"{said} than any that was given",)
    monkeypatch.setattr(log_comparison, "SECONDS", -1.0)
    found = answers.compare_log(journal, logged("ab", "forged"))
    assert found.tampering is None and "it took more than -1 s" in found.notes[0]


def test_reading_a_log_takes_no_time_of_its_comparison(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_comparison, "SECONDS", 1.4)
    give(journal, "<stop/>")

    def slow() -> Iterator[tuple[str, bytes]]:
        for file in logged("<stop/>", "<stop/>"):
            time.sleep(0.8)  # reading and packing it
            yield file

    assert answers.compare_log(journal, slow()) == answers.LogComparison(None, ())


def test_a_comparison_ends_with_its_trial(journal: Journal) -> None:
    give(journal, "<stop/>")
    stop = threading.Event()

    def log() -> Iterator[tuple[str, bytes]]:
        yield from logged("<stop/>")
        stop.set()
        yield from logged("forged")

    said = "the agent's own log was compared in part, the first 1 answers of it: the trial was ended"
    assert answers.compare_log(journal, log(), stop) == answers.LogComparison(None, (said,))


def test_requests_that_were_refused_are_no_answers(journal: Journal) -> None:
    give(journal, "<stop/>")
    give(journal, "", error="too_long no")
    give(journal, "<sto", error="engine no")
    assert answers.compare_log(journal, logged("<stop/>", "<sto")) == answers.LogComparison(None, ())


def test_logs_that_are_too_much_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_logs, "FILES_CAP", 3)
    monkeypatch.setattr(own_logs, "FILE_CAP", 10)
    place = tmp_path / "iterations"
    place.mkdir()
    for number in range(5):
        (place / f"{number}.xml").write_bytes(b"x" * 6 * (1 + number % 2))
    os.mkfifo(place / "0-fifo")
    (place / "0-link").symlink_to("/etc/passwd")
    logs = own_logs.OwnLogs(tmp_path)
    assert [name for name, _ in logs] == ["0.xml", "1.xml", "2.xml"]
    assert logs.notes == (
        "the agent's own log: 1 files were compared up to 10 bytes, the first: 1.xml",
        "the agent's own log: from 3.xml on it was not compared with the journal: it is too much",
    )
    enough = own_logs.OwnLogs(tmp_path, own_logs.Bounds(answers=3))
    assert len(list(enough)) == 5 and len(enough.notes) == 1, "a log of all answers is compared whole"


CLOSED = """
import tempfile
from pathlib import Path
from orchestrator.own_logs import OwnLogs

with tempfile.TemporaryDirectory() as top:
    data = Path(top) / "data"
    (data / "iterations").mkdir(parents=True)
    data.chmod(0)
    logs = OwnLogs(data)
    print(list(logs), *logs.notes)
    data.chmod(0o700)
"""


def test_a_log_behind_a_closed_directory_is_noted(run_as: Callable[..., Any], tmp_path: Path) -> None:
    """`chmod 000 /root/data` closes its upper to a supervisor that is not root."""
    done = run_as("user", [sys.executable, "-c", CLOSED], cwd=Path(__file__).parents[2])
    assert done.stdout.startswith(b"[] ") and b"directories that can't be read" in done.stdout, done
    logs = own_logs.OwnLogs(tmp_path / "nothing")
    assert (list(logs), logs.notes) == ([], ())


def test_logs_nested_without_end_are_noted(tmp_path: Path) -> None:
    """Deeper than Python's stack, and than a path may be long."""
    (tmp_path / "iterations").mkdir()
    (tmp_path / "iterations/z.xml").write_bytes(b"last")
    here = os.open(tmp_path / "iterations", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("a", dir_fd=here)
        inner = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    logs = own_logs.OwnLogs(tmp_path)
    assert [content for _, content in logs] == [b"last"]
    assert "nested deeper" in logs.notes[0]
    _remove_tree(tmp_path / "iterations")


def test_a_doctype_is_refused_but_not_the_word_in_a_script() -> None:
    check = answers.checker(b"").check
    assert check("<!DOCTYPE a><a/>").error == "a DOCTYPE is not taken"
    assert check("<!-- x --><!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>").error is not None
    assert check("<single><![CDATA[echo '<!DOCTYPE html>' > a.html]]></single>").error is None
