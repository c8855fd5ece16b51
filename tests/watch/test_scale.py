"""64 instances, 2,000 trials, a journal of 10,000 entries, 1 MB outputs: what is looked at costs what it shows.

Bounds are on processor time of this thread, best of several, and far above what is usual: they find work that grows
with what is stored, not a slow machine.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from orchestrator.trajectory import prompt
from orchestrator.watch import panels_campaign, panels_detail, panels_overview
from orchestrator.watch.campaign_feed import CampaignFeed
from orchestrator.watch.context_tree import tree
from orchestrator.watch.feed import Feed
from orchestrator.watch.iterations import Iterations
from tests.watch import sample as samples
from tests.watch.reading_kit import drawn
from tests.watch.sample import Sample

pytestmark = pytest.mark.timeout(900)  # the sample takes ten seconds; a busy machine takes its time


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    with samples.build(tmp_path_factory.mktemp("large"), samples.LARGE) as built:
        yield built


def cost(work: Callable[[], object], before: Callable[[], object] = lambda: None, times: int = 7) -> float:
    """Milliseconds of processor time, best of several."""
    found = []
    for _ in range(times):
        before()
        begun = time.thread_time()
        work()
        found.append(1000 * (time.thread_time() - begun))
    return min(found)


def test_a_poll_is_cheap_while_everything_changes(large: Sample) -> None:
    with large.clock(), Feed(large.home) as feed:
        snapshot = feed.poll()
        assert len(snapshot.instances) == 64
        assert snapshot.campaigns[0].trials == 2000
        assert cost(feed.poll, large.tick) < 20
        assert cost(feed.poll) < 10


def test_a_campaign_is_cheap_between_and_after_trials(large: Sample) -> None:
    with large.clock(), closing(CampaignFeed(large.home, large.current)) as feed:
        feed.poll()
        feed._judge_at = float("inf")  # its cost is bounded by how often it is computed
        assert cost(feed.poll, large.tick) < 60
        assert cost(feed.poll, lambda: large.finish(large.running[-1]), times=3) < 120


def test_a_window_costs_what_it_shows(large: Sample) -> None:
    with closing(Iterations(large.home, large.long)) as its:
        assert its.count > 10_000
        assert cost(its.refresh) < 5
        first, last = cost(lambda: its.lines(1, 50)), cost(lambda: its.lines(its.count - 50, its.count))
        assert last < 60 and last < 5 * first + 10
        assert cost(lambda: tree(prompt(its.get(its.count)), prompt(its.get(its.count - 1)))) < 60
        assert cost(lambda: its.stdout()) < 100
        assert cost(lambda: its.search("cat big.txt", its.count + 1, -1)) < 50


def test_panels_of_much_are_drawn_quickly(large: Sample) -> None:
    with large.clock(), Feed(large.home) as feed, closing(CampaignFeed(large.home, large.current)) as campaign:
        snapshot, now = feed.poll(), campaign.poll()
        assert cost(lambda: drawn(panels_overview.instances(snapshot, 200), 200), times=3) < 400
        assert cost(lambda: drawn(panels_campaign.matrix(now, 200), 200), times=3) < 400
    with closing(Iterations(large.home, large.long)) as its:
        shown = cost(lambda: drawn(panels_detail.iteration(its, its.count, 80, lines=60), 80), times=3)
        assert shown < 1500


def test_memory_stays_flat_over_many_polls(large: Sample) -> None:
    with large.clock(), Feed(large.home) as feed:
        for _ in range(80):  # histories are full
            large.tick()
            feed.poll()
        tracemalloc.start()
        try:
            sizes = []
            for _ in range(3):
                for _ in range(40):
                    large.tick()
                    feed.poll()
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert sizes[2] - sizes[1] < 400_000, sizes
