"""A shorter one of the long run in benchmarks/long_run.py: cost and memory stay flat, logs pack well."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.long_run import run
from orchestrator.log_archive import LogArchive, Packer
from orchestrator.own_logs import OwnLogs

ITERATIONS, WINDOW = 700, 100  # by iteration 100 the context has its full size: 30 entries, 10 kB each


def test_cost_and_memory_stay_flat(tmp_path: Path) -> None:
    costs, sizes = run(ITERATIONS, tmp_path)
    early, late = statistics.median(costs[150 : 150 + WINDOW]), statistics.median(costs[-WINDOW:])
    # Seven times, if it grew with the iterations; a busy machine alone makes it half as much again.
    assert late < 2.5 * early, f"{early * 1000:.1f} ms of CPU, later {late * 1000:.1f} ms"
    assert sizes[-1] < 1.15 * sizes[len(sizes) // 4], sizes
    logs = sorted((tmp_path / "iterations").glob("*.xml"))
    assert len(logs) == ITERATIONS
    with Packer(tmp_path / "iterations.zst") as packer:
        for _ in OwnLogs(tmp_path).keep(packer):  # as a trial keeps them
            pass
    packed = packer.packed
    assert packed is not None and packed.size < 0.05 * packed.plain, packed
    archive = LogArchive(tmp_path / "iterations.zst")
    for path in logs[:: ITERATIONS // 7]:
        assert archive.read(path.name) == path.read_bytes()
