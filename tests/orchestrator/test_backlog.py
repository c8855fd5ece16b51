"""What waits between main's broker and its supervisor, where the instance decides how fast it comes."""

from __future__ import annotations

import threading
import time

from orchestrator.backlog import MOST, MOST_CHARACTERS, Backlog
from orchestrator.journal import Asked, Exchange


def inference(n: int, reply: str = "<stop/>", *, prefix: str = "") -> Exchange:
    asked = Asked(9, "00" * 32, system="s", context="c" * 1000, prefix=prefix)
    return Exchange(n, 1.0, "infer", asked, reply, 0.1)


def test_taking_ends_however_fast_more_come() -> None:
    backlog, stop = Backlog(), threading.Event()

    def put() -> None:
        while not stop.wait(0.001):
            backlog.put(inference(1))

    thread = threading.Thread(target=put)
    thread.start()
    try:
        begun = time.monotonic()
        for taken, _ in enumerate(backlog.take(0.2)):
            time.sleep(0.01)  # a check
            assert taken < 100, "it goes on for ever"
        assert time.monotonic() - begun < 2
    finally:
        stop.set()
        thread.join()


def test_it_is_bounded_and_keeps_no_context() -> None:
    backlog = Backlog()
    for n in range(1, MOST + 10):
        backlog.put(inference(n, prefix="<"))
    backlog.put(Exchange(1, 1.0, "limit", Asked(9, "00" * 32), "32768", 0.1))
    assert backlog.arrived == MOST + 9
    found = list(backlog.take(60))
    assert [one.n for one in found] == list(range(1, MOST + 1))
    assert {(one.asked.prefix, one.asked.context, one.asked.system, one.reply) for one in found} == {
        ("<", None, "", "<stop/>")
    }
    large = "x" * (MOST_CHARACTERS // 2)
    for n in range(4):
        backlog.put(inference(n, large))
    assert [one.n for one in backlog.take(60)] == [0, 1]
    backlog.put(inference(7, large + large + "x"))
    assert [one.n for one in backlog.take(60)] == [7]  # alone it has room, whatever its size
