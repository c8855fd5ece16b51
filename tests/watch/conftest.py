"""One sample home for all tests that only look at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.watch import sample as samples
from tests.watch.sample import Sample


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    """Nobody may change it. Look at it within `shown.clock()`."""
    with samples.build(tmp_path_factory.mktemp("shown")) as built:
        yield built
