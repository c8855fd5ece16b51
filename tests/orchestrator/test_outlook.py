"""What `sia promote --dry-run` and `sia rollback --dry-run` say, and that they change nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator import outlook
from orchestrator.cli.promote import promote, rollback
from orchestrator.config import load_settings
from orchestrator.errors import Failed, Refused, UsageError
from orchestrator.generations import Ledger
from tests.watch import sample as samples
from tests.watch.sample import Sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    with samples.build(tmp_path_factory.mktemp("sample"), hostile=False) as built:
        yield built


def state(sample: Sample) -> tuple[object, ...]:
    ledger = Ledger(sample.connection)
    return ledger.standing(), ledger.generations(), ledger.promotions()


def test_a_rollback_says_where_it_goes_and_changes_nothing(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(sample.home.checkout)
    before = state(sample)
    assert rollback(dry_run=True) == 0
    assert "from generation 2 (show-more) to generation 1 (first" in capsys.readouterr().out
    assert rollback(1, with_state=True, dry_run=True) == 0
    assert "its data go back to that time too" in capsys.readouterr().out
    assert state(sample) == before


@pytest.mark.parametrize(("number", "says"), [(3, "generation 3 is bad"), (2, "is the current one")])
def test_a_rollback_that_cannot_be_is_refused_beforehand(sample: Sample, number: int, says: str) -> None:
    with pytest.raises(Failed, match=says):
        outlook.rollback(sample.home, sample.connection, number)


def test_a_promotion_goes_through_the_same_gate_as_the_real_one(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sample.home.checkout)
    before = state(sample)
    for name, says in (("show-more", "it is what generation 2 is already"), ("worse", "the verdict is stale")):
        with pytest.raises(Refused, match=says):
            promote(name, dry_run=True)
    with pytest.raises(UsageError, match="no verdict"):
        promote("nobody", dry_run=True)
    assert state(sample) == before


def test_a_promotion_that_would_pass_says_what_follows(sample: Sample) -> None:
    """The candidate that was rolled back: judged inconclusive against the present generation, and BAD since."""
    settings = load_settings(sample.home.checkout)
    assert outlook.needs_reason(sample.connection, "trim-logs", sample.inconclusive)
    with pytest.raises(Refused, match="inconclusive, not better"):
        outlook.promotion(sample.home, settings, sample.connection, "trim-logs")
    text = outlook.promotion(sample.home, settings, sample.connection, "trim-logs", accept="it frees the disk")
    assert "in place of generation 2" in text
    assert "must complete" in text
    assert "it frees the disk" in text
