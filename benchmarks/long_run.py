"""A long run: 10,000 iterations, 30 entries, outputs of 10 kB. `benchmarks/run long_run`; minutes, 3 GB in TMPDIR.

Another length: `SIA_LONG_RUN=1000 benchmarks/run long_run`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

import psutil

from benchmarks.agent import Bench
from benchmarks.figure import Figure
from instance.entries import SingleEntry
from instance.memory import WorkingMemory
from instance.scripts import Script, ScriptResult, ScriptRunner
from instance.signals import Interrupt
from orchestrator.log_archive import LogArchive, Packer
from orchestrator.own_logs import OwnLogs

ENTRIES, OUTPUT = 30, 10_000
WINDOW = 200  # iterations that are compared: the first after a warm-up, and the last


def output(number: int) -> str:
    """10 kB that differ from run to run, as listings and logs do."""
    return "".join(f"{(number * 7919 + line * 104729) % 1_000_003:>8} request done\n" for line in range(OUTPUT // 22))


def replace_oldest(memory: WorkingMemory, number: int, runner: ScriptRunner) -> None:
    """The oldest entry goes, the output of a script comes: what scripts cost themselves is not measured here."""
    oldest = memory.get_entries()[0]
    memory.remove_entry(oldest.id)
    result = ScriptResult(output(number), "", 0)
    memory.add_entry(SingleEntry(Script(f"tail log-{number}"), runner, f"s{number:06d}", oldest.timestamp, result))


def run(iterations: int, data: Path) -> tuple[list[float], list[float]]:
    """CPU seconds of the agent in each iteration, and resident megabytes now and then."""
    bench = Bench(data, ENTRIES)
    runner, process = ScriptRunner({}, Interrupt()), psutil.Process()
    costs: list[float] = []
    sizes: list[float] = []
    try:
        for number in range(iterations):
            if number % 2 == 0:  # the engine answers a thought, then its delete
                replace_oldest(bench.memory, number, runner)
            costs.append(bench.step()[1])
            if number % max(1, iterations // 20) == 1:
                sizes.append(process.memory_info().rss / 1e6)
    finally:
        bench.close()
    return costs, sizes


def measure() -> list[Figure]:
    """Cost and memory at the end against the beginning, and what the logs take on disk."""
    iterations = int(os.environ.get("SIA_LONG_RUN", "10000"))
    with tempfile.TemporaryDirectory(prefix="sia-benchmark-") as directory, open(os.devnull, "w") as nowhere:
        log = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            costs, sizes = run(iterations, Path(directory) / "data")
        finally:
            os.dup2(log, 2)
            os.close(log)
        logs = sorted((Path(directory) / "data" / "iterations").glob("*.xml"))
        archive = Path(directory) / "iterations.zst"
        with Packer(archive) as packer:
            for _ in OwnLogs(Path(directory) / "data").keep(packer):  # as a trial keeps them
                pass
        packed, kept = packer.packed, LogArchive(archive)
        assert packed is not None and packed.plain >= sum(path.stat().st_size for path in logs)
        assert all(kept.read(probe.name) == probe.read_bytes() for probe in logs[:: max(1, len(logs) // 7)])
    warm = min(100, iterations // 10)
    early, late = statistics.median(costs[warm : warm + WINDOW]), statistics.median(costs[-WINDOW:])
    settled = statistics.median(sizes[2:6] or sizes)
    cost = f"{early * 1000:.2f} ms of CPU at the beginning, {late * 1000:.2f} ms at iteration {iterations:,}"
    memory = f"{settled:.1f} MB early, {sizes[-1]:.1f} MB at the end, engine's side and benchmark included"
    disk = f"{packed.files:,} logs, {packed.plain / 1e6:,.0f} MB plain, {packed.size / 1e6:.1f} MB packed"
    return [
        Figure("long run: cost of a late iteration", late / early, 1.2, "an early one", cost),
        Figure("long run: memory at the end", sizes[-1] / settled, 1.1, "after 10 to 30 %", memory),
        Figure("long run: packed logs", packed.size / packed.plain, 0.05, "plain logs", disk),
    ]
