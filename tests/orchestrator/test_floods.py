"""Trials whose instance floods what it can write to with 2 GB: each ends for a reason that its record names, the
supervisor's memory stays flat, and the trial beside it does not notice."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import psutil
import pytest

from orchestrator.broker import MAX_BAD_BYTES
from orchestrator.journal import Journal
from orchestrator.trial import TrialRecord, run_trial
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import ONE_MODE, TrialKit

environments, kit = trial_kit.environments, trial_kit.kit
pytestmark = [pytest.mark.sandbox, ONE_MODE]

FLAT = 120  # megabytes that a flood of 2048 may add, with all that the trial beside it takes

LINE = """
import os, socket
line = socket.socket(fileno=3)
block = b"x" * (1 << 20)
def infer(context):
    line.sendall(b"<infer_xml><schema>s</schema><system>s</system><context>" + context + b"</context></infer_xml>\\x04")
"""
# An ordinary instance: fifty exchanges, then its work.
NEIGHBOUR = (
    LINE
    + """
for _ in range(50):
    infer(b"c")
    answer = b""
    while not answer.endswith(b"\\x04"):
        answer += line.recv(1000)
    assert answer == b"<stop/>\\x04", answer
open("answer", "w").write("42")
"""
)


@dataclass(frozen=True)
class Flood:
    """What an instance does, how its trial ends (`|`: or), and how many seconds that may take on a busy machine."""

    program: str
    detail: str
    outcome: str = "crashed"
    seconds: float = 30.0
    limit: float = 60.0  # seconds, of the trial itself


FLOODS = {
    "one request without an end": Flood("for _ in range(2048): line.sendall(block)", "too many bad requests"),
    "requests that are too large": Flood(
        "for _ in range(100):\n    for _ in range(20): line.sendall(block)\n    line.sendall(b'\\x04')",
        "too many bad requests",
    ),
    "small rubbish": Flood("while True: line.sendall(b'x\\x04' * 50_000)", "too many bad requests"),
    # On a fast machine the bound of what is refused comes before the two seconds are over.
    "requests without a reader": Flood(
        "while True: infer(block)", "seconds|too many bad requests", "limit|crashed", limit=2.0
    ),
    "answers without a reader": Flood("while True: infer(b'big')", "seconds", "limit", limit=2.0),
    "stdout and stderr": Flood("for _ in range(1024): os.write(1, block), os.write(2, block)", "", "completed"),
}
BIG = "[[rule]]\nwhen = \"contains(., 'big')\"\nanswer = '<single>" + "z" * 60_000 + "</single>'\n" + trial_kit.STOPS


@pytest.mark.parametrize("name", FLOODS)
def test_flood(kit: TrialKit, name: str) -> None:
    flood = FLOODS[name]
    context, task = kit.context(BIG), kit.task()
    records: dict[str, TrialRecord] = {}

    def run(who: str, program: str, seconds: float) -> None:
        spec = kit.spec(kit.instance(program), task, seconds=seconds, iterations=1000)
        records[who] = run_trial(context, spec)

    run("before", NEIGHBOUR, 60.0)  # everything that is loaded once is loaded
    threads = [
        threading.Thread(target=run, args=("neighbour", NEIGHBOUR, 60.0)),
        threading.Thread(target=run, args=("flood", LINE + flood.program, flood.limit)),
    ]
    process, begun = psutil.Process(), time.monotonic()
    before = peak = process.memory_info().rss
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        peak = max(peak, process.memory_info().rss)
        threads[1].join(0.01)
        time.sleep(0.01)
    took = time.monotonic() - begun
    record, neighbour = records["flood"], records["neighbour"]
    print(f"{name}: {record.outcome} {record.detail}, {took:.2f} s, +{(peak - before) / 1e6:.0f} MB")
    endings = zip(flood.outcome.split("|"), flood.detail.split("|"), strict=True)
    assert any(record.outcome == outcome and detail in record.detail for outcome, detail in endings)
    assert (neighbour.outcome, neighbour.reward) == ("completed", 1.0)
    assert peak - before < FLAT * 1e6
    taken = sum(exchange.asked.size for exchange in Journal.open(kit.store, record.journal))
    assert taken < MAX_BAD_BYTES + (32 << 20)  # of 2 GB: the line was closed long before
    assert took < flood.seconds
