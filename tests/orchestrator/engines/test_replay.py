"""The replay engine answers what was answered, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.engines.host import EngineHost
from orchestrator.engines.replay import ReplayModel, difference
from orchestrator.engines.serve import EngineError
from orchestrator.errors import ConfigError
from orchestrator.journal import Asked, Exchange, prompt_hash
from orchestrator.protocol import EngineUsage, Request
from tests.orchestrator.broker_kit import TOP, Kit, count_request, infer_request, kit_in, wait_for


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
        assert second.ask(count_request("<context n='never'/>")).startswith(b"\x15engine no recorded count")
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


def test_counts_are_what_was_counted_and_not_what_an_inference_took(kit: Kit) -> None:
    """The two differ where an engine estimates one of them."""
    answers = "b'7' if data.startswith(b'<token') else b'<stop/>'"
    live = kit.program(
        f"while True:\n    data = read()\n    line.sendall(({answers}) + b'\\x04<usage prompt=\"99\"/>\\x04')"
    )
    _, first = kit.line(live, name="recorded")
    requests = [count_request("<context>a</context>"), infer_request("<context>a</context>", "s")]
    requests += [infer_request("<context>b</context>", "s")]
    given = [first.ask(request) for request in requests]
    assert given == [b"7", b"<stop/>", b"<stop/>"]
    command = ["python", "-m", "orchestrator.engines.replay", str(kit.directory)]
    with EngineHost("replay", command, TOP, kit.directory / "log") as engine:
        engine.wait_ready()
        line, second = kit.line(engine, name="again")
        assert [second.ask(request) for request in requests] == given
        assert second.ask(count_request("<context>b</context>")) == b"99"  # it was never counted
        miss = second.ask(count_request("<context>c</context>")).decode()
        assert miss.startswith("\x15engine no recorded count of this prompt (")
        assert "in its context at byte 9, where b'c</context>' is asked and b'a</context>' was recorded" in miss
        line.close()


LIVE = """
import socket, sys
listener = socket.socket(fileno=0)
while True:
    line, _ = listener.accept()
    data = b""
    while not data.endswith(b"\\x04") and (part := line.recv(65536)):
        data += part
    if data.startswith(b"<token"):
        line.sendall(b"4096" if b"<token_limit" in data else b"many")
        line.sendall(b"\\x04<usage/>\\x04")
    else:
        open(sys.argv[1], "x").close()
        assert line.recv(1) == b""
        open(sys.argv[2], "x").close()
"""


def test_a_cancel_reaches_a_live_engine_that_is_silent(kit: Kit, tmp_path: Path) -> None:
    asked, cancelled = tmp_path / "asked", tmp_path / "cancelled"
    command = ["python", "-m", "orchestrator.engines.replay", str(kit.directory), "--record", "--"]
    command += ["python", "-c", LIVE, str(asked), str(cancelled)]
    with EngineHost("replay", command, TOP, kit.directory / "log") as engine:
        assert engine.wait_ready() == 4096  # no journal has a limit
        line, instance = kit.line(engine, schema=b"")
        reply = instance.ask(count_request())
        assert reply == b"\x15engine the live engine answers 'many', which is no number of tokens"
        instance.send(infer_request())
        wait_for(asked.exists)
        instance.socket.close()
        wait_for(cancelled.exists)
        wait_for(lambda: line.ended == "closed")


def recorded(n: int, context: str, **more: object) -> Exchange:
    asked = Asked(9, "00" * 32, "sys", "<xsd/>", context, seed=n, **more)  # type: ignore[arg-type]
    return Exchange(n, 1.0, "infer", asked, f"<single>{n}</single>", 0.1, usage=EngineUsage(10 * n))


def count_of(context: str, prefix: str = "") -> Request:
    return Request("token_count", "sys", "<xsd/>", context, prefix=prefix)


def test_a_prefix_is_counted_too() -> None:
    counts = [
        Exchange(n, 1.0, "count", Asked(9, "00" * 32, prompt=prompt_hash(count_of("<c/>", prefix))), str(n), 0.1)
        for n, prefix in enumerate(("", "<single>"), 1)
    ]
    model = ReplayModel([*counts, recorded(3, "<c/>")])
    assert [model.token_count(count_of("<c/>", prefix)) for prefix in ("", "<single>", "<other>")] == [1, 2, 30]


def test_a_journal_from_before_counts_were_recorded_is_readable() -> None:
    count = Exchange(1, 1.0, "count", Asked(9, "00" * 32), "77", 0.1)
    model = ReplayModel([count, recorded(2, "<c/>", prefix="<s")])
    assert model.token_count(count_of("<c/>")) == 20
    with pytest.raises(EngineError, match="no recorded count"):
        model.token_count(count_of("<d/>"))


def test_a_difference_in_the_head_does_not_hide_the_one_that_caused_it() -> None:
    """A first count shows the percent of the iteration before, so it parts there from every recorded inference."""
    body = "<single>make</single>\n" * 20
    exchanges = [
        recorded(n, f'<context time="1"\ncontext="{n + 8}"\nstdin="0">\n{body * n}<stop>old</stop></context>')
        for n in range(1, 4)
    ]
    asked = count_of(f'<context time="1"\ncontext="9"\nstdin="0">\n{body * 2}<stop>new</stop></context>')
    told = difference(asked, exchanges)
    assert told.startswith(": it parts from exchange 2 in its context at byte 27, where b'9\"")
    assert "was recorded, and again at byte 927, where b'new</stop></context>' is asked and b'old</stop>" in told
    (only,) = [replace(exchanges[0], asked=replace(exchanges[0].asked, schema="<xse/>"))]
    assert "in its schema at byte 3, where b'd/>' is asked and b'e/>' was recorded" in difference(asked, [only])
    assert "again" not in difference(asked, [only])


def test_a_miss_in_a_large_store_is_explained_in_bounded_time() -> None:
    context = "<context>" + "x" * 2_000_000
    exchanges = [recorded(n, f"{context}{n}") for n in range(1, 31)]
    begun = time.monotonic()
    assert "from exchange 1 in its context at byte 2000009, where b'new' is asked and b'1'" in difference(
        count_of(context + "new"), exchanges
    )
    assert time.monotonic() - begun < 5  # byte by byte it would be 60,000,000 steps
    slow = (time.sleep(0.2) or one for one in exchanges)  # type: ignore[func-returns-value]
    told = difference(count_of(context + "new"), slow, seconds=0.1)
    assert told.endswith(" (the first 0 recorded inferences were compared, more would take too long)")
