"""The replay engine answers what was answered, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.engines.host import EngineHost
from orchestrator.errors import ConfigError
from tests.orchestrator.broker_kit import TOP, Kit, count_request, infer_request, kit_in


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with kit_in(tmp_path) as kit:
        yield kit


def test_a_recorded_conversation_is_replayed_and_a_miss_fails_closed(kit: Kit) -> None:
    live = kit.engine(
        "[tokens]\nlimit = 777\n[[rule]]\nanswer = '<single>{n} {s}</single>'\nlet = { n = '@n', s = '$seed' }\n"
    )
    _, first = kit.line(live, name="recorded", schema=b"")
    requests = [b"<token_limit/>\x04", *(infer_request(f"<context n='{n}'/>") for n in range(3))]
    given = [first.ask(request) for request in requests]
    first.journal.seal()
    engine = EngineHost(
        "replay",
        ["python", "-m", "orchestrator.engines.replay", str(kit.directory), "recorded"],
        TOP,
        kit.directory / "log",
    )
    with engine:
        assert engine.wait_ready() == 777
        line, second = kit.line(engine, name="again", schema=b"")
        assert [second.ask(request) for request in requests] == given
        assert [one.usage for one in second.exchanges()] == [one.usage for one in first.exchanges()]
        assert second.ask(count_request("<context n='never'/>")).startswith(b"\x15engine no recorded inference")
        miss = second.ask(infer_request("<context n='0'/>"))  # the seed is another by now
        assert miss.startswith(b"\x15engine no recorded answer for this request (")
        assert line.usage.iterations == 3
        line.close()


@pytest.mark.parametrize(
    ("names", "said"), [((), "there is no exchange store"), (("x",), "there is no exchange store")]
)
def test_a_missing_store_is_named(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    command = ["python", "-m", "orchestrator.engines.replay", str(tmp_path), *names]
    with EngineHost("replay", command, TOP, tmp_path / "log") as host, pytest.raises(ConfigError, match=said):
        host.wait_ready()


def test_a_miss_names_the_first_byte_that_differs(kit: Kit) -> None:
    live = kit.engine("[[rule]]\nanswer = '<stop/>'\n")
    _, first = kit.line(live, name="recorded", schema=b"")
    first.ask(infer_request("<context>abc one</context>"))
    first.journal.seal()
    command = ["python", "-m", "orchestrator.engines.replay", str(kit.directory)]
    with EngineHost("replay", command, TOP, kit.directory / "log") as engine:
        engine.wait_ready()
        line, second = kit.line(engine, name="again", schema=b"")
        miss = second.ask(infer_request("<context>abc two</context>")).decode()
        assert "parts from exchange 1 in its context at byte" in miss
        assert "b'two" in miss
        assert "b'one" in miss
        line.close()


def test_record_mode_asks_the_live_engine_for_what_is_missing(kit: Kit, tmp_path: Path) -> None:
    live = kit.engine("[[rule]]\nanswer = '<single>old</single>'\n")
    _, first = kit.line(live, name="recorded", schema=b"")
    first.ask(infer_request("<context>a</context>"))
    first.journal.seal()
    policy = tmp_path / "new.toml"
    policy.write_text("[[rule]]\nanswer = '<single>new</single>'\n")
    command = ["python", "-m", "orchestrator.engines.replay", str(kit.directory), "recorded", "--record", "--"]
    command += ["python", "-m", "orchestrator.engines.scripted", str(policy)]
    with EngineHost("replay", command, TOP, kit.directory / "log") as engine:
        engine.wait_ready()
        line, second = kit.line(engine, name="again", schema=b"")
        assert b"old" in second.ask(infer_request("<context>a</context>"))
        assert b"new" in second.ask(infer_request("<context>b</context>"))
        line.close()
