"""The pictures in docs/watch/ show the dashboard as it is: the same sample is drawn again and read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.watch import pictures
from tests.watch.driving import words
from tests.watch.pictures import SHOTS, SIZES, Shot
from tests.watch.sample import Sample


@pytest.fixture(scope="module")
def sample() -> Iterator[Sample]:
    with pictures.quiet_sample() as made:
        yield made


@pytest.mark.parametrize(("columns", "lines"), SIZES, ids=[f"{columns}x{lines}" for columns, lines in SIZES])
@pytest.mark.parametrize("shot", SHOTS, ids=[shot.name for shot in SHOTS])
def test_the_picture_is_what_the_dashboard_shows(sample: Sample, shot: Shot, columns: int, lines: int) -> None:
    kept = pictures.path(shot, columns, lines).read_text(encoding="utf-8")
    for _ in range(3):  # on a loaded machine a reading thread may be late for the picture
        now = pictures.take(sample, shot, columns, lines)
        if words(now) == words(kept):
            break
    assert words(now) == words(kept), "draw it anew: scripts/watch-snapshots"
    assert "http" not in kept.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched when it is looked at


def test_no_picture_is_left_of_a_view_that_is_gone() -> None:
    known = {pictures.path(shot, *size) for shot in SHOTS for size in SIZES}
    assert set(pictures.PLACE.glob("*.svg")) == known
