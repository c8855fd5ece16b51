"""Small parts by themselves: what is measured, what signals ask for and until when, how a start is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from instance.clock import Clock
from instance.metrics import SystemMetrics
from instance.settings import read_settings
from instance.signals import Interrupt


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ({}, None),
        ({"card0": "7\n", "card1": "41\n"}, "41"),
        ({"card0": "?", "card1": "0"}, "0"),
        ({"card0": "?"}, None),
    ],
)
def test_the_busiest_gpu_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], shown: str | None
) -> None:
    for card, content in files.items():
        (tmp_path / card / "device").mkdir(parents=True)
        (tmp_path / card / "device" / "gpu_busy_percent").write_text(content)
    monkeypatch.setattr("instance.metrics._GRAPHICS", tmp_path)
    metrics = SystemMetrics(60.0, tmp_path, Clock())
    try:
        assert metrics.attributes(0.0).get("gpu") == metrics.generate_context(0.0).get("gpu") == shown
    finally:
        metrics.stop()


@pytest.mark.parametrize(("request_", "answer", "script"), [("stop", 7.0, 7.0), ("restart", 45.0, None)])
def test_how_long_work_may_go_on(request_: str, answer: float, script: float | None) -> None:
    """The contract gives 10 seconds from SIGTERM to the end, 60 from SIGUSR1."""
    interrupt = Interrupt()
    assert interrupt.answer_deadline() is interrupt.script_deadline() is None
    interrupt.ask(request_)  # type: ignore[arg-type]
    assert interrupt.answer_deadline() == interrupt.asked_at + answer
    assert interrupt.script_deadline() == (None if script is None else interrupt.asked_at + script)


@pytest.mark.parametrize(
    ("request_", "seconds", "left"), [("restart", 57, "restart"), ("restart", 58.1, None), ("stop", 1000, "stop")]
)
def test_a_request_to_restart_is_dropped_when_nobody_waits(request_: str, seconds: float, left: str | None) -> None:
    interrupt = Interrupt()
    interrupt.ask(request_)  # type: ignore[arg-type]
    interrupt.asked_at -= seconds
    interrupt.forget_late_restart()
    assert interrupt.request == left


@pytest.mark.parametrize(
    ("arguments", "run_again"), [(["--engine", "e"], False), (["--engine=e", "--run-again"], True)]
)
def test_run_again_is_an_option(arguments: list[str], run_again: bool) -> None:
    assert read_settings(arguments, {}).run_again is run_again
    assert read_settings([], {"SIA_ENGINE_FD": "3"}).run_again is False
