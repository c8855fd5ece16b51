"""The broker between hostile instances and failing engines."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator import broker
from orchestrator.broker import MAX_ALL_FAULTS, MAX_BAD, MAX_FAULTS, Budget
from orchestrator.journal import Exchange, Journal, prompt_hash
from orchestrator.protocol import MAX_COUNTS, MAX_REQUEST, Request
from tests.orchestrator.broker_kit import SCHEMA, Kit, count_request, infer_request, kit_in, wait_for


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with kit_in(tmp_path) as kit:
        yield kit


def memory_mb() -> float:
    return psutil.Process().memory_info().rss / 1e6


def test_a_whole_conversation_is_answered_counted_and_recorded(kit: Kit) -> None:
    seen: list[Exchange] = []
    policy = "[[rule]]\nanswer = '<single>é{n}</single>'\n[rule.let]\nn = 'count(single)'\n"
    policy += "[stream]\nchunk = 3\nsplit_utf8 = true\n"
    line, instance = kit.line(kit.engine(policy + "[usage]\ncost_per_1k = 0.5\n"), on_exchange=seen.append)
    assert not line.first_request.is_set()
    assert instance.ask(b"<token_limit/>\x04") == b"32768"
    assert line.first_request.is_set()
    assert instance.ask(count_request("<context/>")) == instance.ask(count_request("<context/>"))
    assert instance.infer("<context><single/></context>") == "<single>é1</single>".encode()
    assert instance.infer() == "<single>é0</single>".encode()
    usage = line.usage
    assert (usage.iterations, usage.counts) == (2, 2)
    assert usage.tokens == usage.prompt_tokens + usage.completion_tokens > 0
    assert usage.cost == pytest.approx(usage.tokens * 0.5 / 1000)
    assert usage.engine_seconds > 0
    assert (line.ended, line.engine_faults, line.outage, line.notes) == (None, (), None, ())
    exchanges = instance.exchanges()
    assert (
        [one.kind for one in exchanges] == ["limit", "count", "count", "infer", "infer"] == [one.kind for one in seen]
    )
    counted = Request("token_count", "s", SCHEMA.decode(), "<context/>")
    assert [one.asked.prompt for one in exchanges] == ["", prompt_hash(counted), prompt_hash(counted), "", ""]
    assert [one.asked.seed for one in exchanges[3:]] == [1, 2]  # the broker's, by ordinal
    assert exchanges[3].asked.context == "<context><single/></context>" and exchanges[3].asked.schema == SCHEMA.decode()
    assert exchanges[3].reply == "<single>é1</single>"
    instance.socket.close()
    wait_for(lambda: line.ended == "closed")
    instance.journal.seal()
    assert Journal.open(kit.store, "trial").verify().problem is None


def test_an_instances_schema_path_and_seed_are_ignored(kit: Kit) -> None:
    policy = "[[rule]]\nanswer = '{s} {n}'\n[rule.let]\ns = \"contains($schema, 'read_stdin')\"\nn = '$seed'\n"
    _, instance = kit.line(kit.engine(policy))
    wanted = (
        b"<infer_xml seed='99' max_tokens='1'><schema>/etc/passwd</schema><system/><context>x</context></infer_xml>\x04"
    )
    assert instance.ask(wanted) == b"true 1"


@pytest.mark.parametrize(
    "schema",
    [
        b"",
        b"<no",
        b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:include schemaLocation="/x"/></xs:schema>',
    ],
)
def test_a_schema_that_is_no_use_means_unguided_answers(kit: Kit, schema: bytes) -> None:
    line, instance = kit.line(kit.engine("[[rule]]\nanswer = '[{s}]'\n[rule.let]\ns = '$schema'\n"), schema=schema)
    assert instance.infer() == b"[]"
    assert line.notes[0].startswith("unguided: ")


def test_an_engine_that_can_not_guide_is_noted_once(kit: Kit) -> None:
    """The schema is a valid one, so only the engine knows. One that says nothing is none that says no."""
    said = "<usage prompt='1' completion='1' unguided='xs:date &#x9b;2J{n}'/>"
    body = f'n = 0\nwhile True:\n    read(); n += 1\n    line.sendall(f"<stop/>\\x04{said}\\x04".encode())'
    line, instance = kit.line(kit.program(body))
    for _ in range(3):
        assert instance.infer() == b"<stop/>"
    assert line.notes == ("unguided: xs:date 1",)
    silent, other = kit.line(kit.engine(), name="other")
    assert other.infer() == b"<stop/>"
    assert silent.notes == ()


@pytest.mark.parametrize(
    ("budget", "usage", "allowed"),
    [
        (Budget(iterations=2), "", 2),
        (Budget(tokens=600), "", 2),  # one request has about 420
        (Budget(cost=0.5), "[usage]\ncost_per_1k = 1.0\n", 2),
        (Budget(cost=1000.0), "", 1),  # an unknown price is over any limit, never 0
    ],
)
def test_budgets_end_in_a_typed_error(kit: Kit, budget: Budget, usage: str, allowed: int) -> None:
    line, instance = kit.line(kit.engine("[[rule]]\nanswer = '<stop/>'\n" + usage), budget)
    system = "x" * 1200
    for _ in range(allowed):
        assert instance.infer(system=system) == b"<stop/>"
    for _ in range(3):
        assert instance.infer(system=system).startswith(b"\x15budget ")
    assert line.ended == "budget"
    assert instance.ask(count_request()).isdigit()  # the line stays open for an orderly end
    assert line.usage.iterations == allowed


def test_the_last_answer_is_cut_to_the_tokens_that_are_left(kit: Kit) -> None:
    _, instance = kit.line(kit.engine("[[rule]]\nanswer = '" + "y" * 4000 + "'\n"), Budget(tokens=100), schema=b"")
    assert instance.infer() == b"y" * 400
    assert instance.exchanges()[-1].finish == "length"


def test_more_than_twenty_counts_for_one_inference(kit: Kit) -> None:
    _, instance = kit.line(kit.engine())
    for number in range(MAX_COUNTS):
        assert instance.ask(count_request("x" * (number % 3))).isdigit()
    assert instance.ask(count_request()).startswith(b"\x15bad_request more than 20 token counts")
    assert instance.infer() == b"<stop/>"
    assert instance.ask(count_request()).isdigit()


@pytest.mark.bad_input
def test_bad_input_instance_sends_garbage(kit: Kit) -> None:
    line, instance = kit.line(kit.engine())
    for garbage in (b"", b"hello", os.urandom(1000).replace(b"\x04", b""), b"<infer_xml>", b"<!DOCTYPE a><infer_xml/>"):
        reply = instance.ask(garbage + b"\x04")
        assert reply.startswith(b"\x15bad_request "), reply
        print(reply[1:].decode())
    assert instance.infer() == b"<stop/>"  # in step again
    assert [one.kind for one in instance.exchanges()] == ["refused"] * 5 + ["infer"]
    for _ in range(MAX_BAD):
        instance.send(b"x\x04")
    assert instance.closed()
    assert line.ended == "abuse"


@pytest.mark.bad_input
def test_bad_input_instance_sends_half_a_request(kit: Kit) -> None:
    line, instance = kit.line(kit.engine())
    instance.send(infer_request()[:-20])
    instance.socket.close()
    wait_for(lambda: line.ended == "closed")
    (record,) = instance.exchanges()
    assert record.error == "bad_request the line was closed inside a request"
    assert record.asked.head.startswith("<infer_xml><schema>/x")
    print(record.error)


@pytest.mark.bad_input
def test_bad_input_instance_closes_its_engine_socket(kit: Kit) -> None:
    """In mid-answer: the generation is cancelled, and the engine serves others."""
    engine = kit.engine(
        "[[rule]]\nwhen = '@slow'\nanswer = '<stop/>'\n[rule.faults]\nsilence = 1\n[[rule]]\nanswer = '<stop/>'\n"
    )
    line, instance = kit.line(engine)
    instance.send(infer_request("<context slow='1'/>"))
    wait_for(lambda: line.engine_silent > 0.1)
    instance.socket.close()
    wait_for(lambda: line.ended == "closed")
    (record,) = instance.exchanges()
    print(record.error)
    assert record.error == "closed the instance closed the line before the end"
    assert (line.outage, line.engine_faults, line.usage.iterations) == (None, (), 0)
    assert kit.line(engine, name="other")[1].infer() == b"<stop/>"


def test_a_request_that_is_too_large_is_taken_off_the_line_in_flat_memory(kit: Kit) -> None:
    _, instance = kit.line(kit.engine())
    assert instance.infer() == b"<stop/>"
    before, peak, done = memory_mb(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, memory_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(200):
            instance.send(b"x" * (1 << 20))
        reply = instance.ask(b"\x04")
    finally:
        done.set()
        watcher.join()
    assert reply.startswith(b"\x15bad_request request of 209715200 bytes, at most 16777216")
    assert peak - before < 60
    assert instance.infer() == b"<stop/>"
    refused = instance.exchanges()[1]
    assert (refused.kind, refused.asked.size, len(refused.asked.head)) == ("refused", 200 << 20, 4000)


def test_a_request_of_exactly_the_limit_reaches_the_engine(kit: Kit) -> None:
    _, instance = kit.line(kit.engine("[tokens]\nlimit = 1000000000\n[[rule]]\nanswer = '<stop/>'\n"))
    frame = infer_request("")
    wanted = infer_request("y" * (MAX_REQUEST - len(frame) + 1))
    assert len(wanted) == MAX_REQUEST + 1
    assert instance.ask(wanted) == b"<stop/>"


def test_a_prompt_that_is_too_long_is_refused_and_not_kept(kit: Kit) -> None:
    line, instance = kit.line(kit.engine("[tokens]\nlimit = 100\n[[rule]]\nanswer = '<stop/>'\n"), schema=b"")
    instance.send(infer_request("x" * 1000).replace(b"</infer_xml>", b"<prefix>p</prefix></infer_xml>"))
    assert instance.receive().startswith(b"\x15too_long ")
    assert instance.infer("x") == b"<stop/>"
    refused = instance.exchanges()[0]
    assert (refused.error or "").startswith("too_long") and refused.asked.context is None
    assert (refused.asked.system, refused.asked.prefix) == ("", "")
    assert (line.usage.iterations, line.engine_faults) == (1, ())


@pytest.mark.parametrize("most", [5, 100])
def test_refused_requests_close_the_line_whatever_else_is_asked(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """By their number or by their bytes; a token limit in between changes nothing, and is not free for ever itself."""
    monkeypatch.setattr(broker, "MAX_BAD", most)
    monkeypatch.setattr(broker, "MAX_BAD_BYTES", 5000)
    line, instance = kit.line(kit.engine("[tokens]\nlimit = 100\n[[rule]]\nanswer = '<stop/>'\n"), schema=b"")
    for _ in range(2):  # an answer counts for all that was refused before
        for _ in range(4):
            assert instance.infer("x" * 1000).startswith(b"\x15too_long ")
        assert instance.infer("x") == b"<stop/>"
    for _ in range(5):
        assert instance.ask(b"<token_limit/>\x04") == b"100"
        assert instance.infer("x" * 1000).startswith(b"\x15too_long ")
    assert instance.closed() and line.ended == "abuse"


def test_more_than_twenty_token_limits_for_one_inference(kit: Kit) -> None:
    _, instance = kit.line(kit.engine())
    assert {instance.ask(b"<token_limit/>\x04") for _ in range(MAX_COUNTS)} == {b"32768"}
    assert instance.ask(b"<token_limit/>\x04").startswith(b"\x15bad_request ")
    assert instance.infer() == b"<stop/>"
    assert instance.ask(b"<token_limit/>\x04") == b"32768"


def test_pipelined_requests_are_answered_in_order(kit: Kit) -> None:
    _, instance = kit.line(kit.engine("[[rule]]\nanswer = '{n}'\n[rule.let]\nn = '@n'\n"))
    instance.send(b"".join(infer_request(f"<context n='{n}'/>") for n in range(20)))
    assert [instance.receive() for _ in range(20)] == [str(n).encode() for n in range(20)]


def test_an_instance_that_never_reads_blocks_nobody_and_takes_no_memory(kit: Kit) -> None:
    answer = "<single>" + "z" * 30_000 + "</single>"
    engine = kit.engine(f"[[rule]]\nwhen = '@big'\nanswer = '{answer}'\n[[rule]]\nanswer = '<stop/>'\n")
    lines = [kit.line(engine, name=f"deaf-{n}") for n in range(4)]
    before = memory_mb()

    def flood(target: socket.socket) -> None:
        try:
            while True:
                target.sendall(infer_request("<context big='1'/>"))
        except OSError:
            pass

    floods = [threading.Thread(target=flood, args=(instance.socket,)) for _, instance in lines]
    for thread in floods:
        thread.start()
    time.sleep(0.5)
    _, other = kit.line(engine, name="other")
    begun = time.monotonic()
    assert all(other.infer() == b"<stop/>" for _ in range(20))
    assert time.monotonic() - begun < 10
    assert memory_mb() - before < 80
    for line, instance in lines:
        begun = time.monotonic()
        line.close()
        assert time.monotonic() - begun < 5
        assert line.ended == "stopped"
        instance.socket.close()
    for thread in floods:
        thread.join(10)


def test_a_half_closed_line_still_gets_its_answer(kit: Kit) -> None:
    line, instance = kit.line(kit.engine())
    instance.send(infer_request())
    instance.socket.shutdown(socket.SHUT_WR)
    assert instance.receive() == b"<stop/>"
    wait_for(lambda: line.ended == "closed")


def test_model_text_with_framing_characters_keeps_the_line_in_step(kit: Kit) -> None:
    engine = kit.program("while True:\n    read(); line.sendall(b'a\\x04b\\x15c\\x04<usage prompt=\"1\"/>\\x04')")
    _, instance = kit.line(engine)
    for _ in range(3):
        assert instance.infer().decode() == "a\ufffdb\ufffdc"
    assert instance.exchanges()[0].reply == "a\ufffdb\ufffdc"


def test_an_engine_without_usage_is_believed_and_its_tokens_are_estimated(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.engine_line._USAGE_WAIT", 0.1)
    line, instance = kit.line(
        kit.program("read(); line.sendall(b'<stop/>\\x04')\nkept = globals().setdefault('k', [])\nkept.append(line)")
    )
    assert instance.infer() == b"<stop/>"
    assert line.usage.completion_tokens == 2 and line.usage.prompt_tokens > 2
    assert line.usage.cost is None
    assert any("estimates" in note for note in line.notes)


@pytest.mark.bad_input
@pytest.mark.parametrize("fault", ["drop", "crash"])
def test_bad_input_engine_dies_in_mid_answer(kit: Kit, fault: str) -> None:
    """The part stays with the instance, the error follows, nothing is asked twice; the next inference works."""
    spoilt = f"[[rule]]\nwhen = '@f'\nanswer = '<single>abc</single>'\nfaults = {{ {fault} = 1 }}\n"
    engine = kit.engine(spoilt + "[[rule]]\nanswer = '<stop/>'\n")
    line, instance = kit.line(engine)
    reply = instance.infer("<context f='1'/>")
    print(reply.decode())
    assert reply == b"<single>ab\x15engine the engine closed the line in mid-answer"
    assert instance.infer() == b"<stop/>"
    assert line.engine_faults == ("the engine closed the line in mid-answer",)
    assert (line.ended, line.usage.iterations) == (None, 1)
    record = instance.exchanges()[0]
    assert (record.reply, record.finish) == ("<single>ab", "error")


def test_a_failure_before_the_first_byte_is_tried_again_unseen(kit: Kit) -> None:
    fails_first = "read()\nif not os.path.exists('/proc/self/fd/77'):\n    os.dup2(1, 77); line.close(); continue\n"
    engine = kit.program(fails_first + "line.sendall(b'<stop/>\\x04<usage/>\\x04')")
    line, instance = kit.line(engine)
    assert instance.infer() == b"<stop/>"
    assert (line.engine_faults, line.usage.iterations, [one.error for one in instance.exchanges()]) == ((), 1, [None])


@pytest.mark.bad_input
def test_bad_input_engine_answers_nothing(kit: Kit) -> None:
    engine = kit.engine("[[rule]]\nanswer = '<stop/>'\nfaults = { silence = 1 }\n")
    line, instance = kit.line(engine, silence=0.4)
    replies = [instance.infer() for _ in range(3)]
    print(replies[0].decode())
    assert set(replies) == {b"\x15engine no answer from the engine for 0.4 s"}
    assert instance.closed()
    assert line.ended == "engine" and len(line.engine_faults) == 3
    assert line.outage is None  # it answers others: this instance's own failure
    assert line.usage.iterations == 0


@pytest.mark.bad_input
def test_bad_input_engine_answers_200_mb_without_an_end(kit: Kit) -> None:
    line, instance = kit.line(kit.engine("[[rule]]\nanswer = 'x'\nfaults = { flood = 1 }\n"))
    before = memory_mb()
    instance.send(infer_request())
    size = 0
    while not (part := instance.socket.recv(1 << 20)).endswith(b"\x04"):
        size += len(part)
    error = part[part.rindex(b"\x15") + 1 : -1].decode()
    print(error)
    assert error == "engine an answer of more than 16777216 bytes without an end"
    assert 15e6 < size < 18e6
    assert memory_mb() - before < 150
    assert len(instance.exchanges()[0].reply) > 15e6
    assert instance.ask(b"<token_limit/>\x04") == b"32768"
    assert line.engine_faults


def test_an_engine_that_is_gone_is_an_outage_and_not_the_instances_failure(kit: Kit) -> None:
    engine = kit.program("os._exit(9)")
    line, instance = kit.line(engine)
    replies = [instance.infer() for _ in range(3)]
    assert all(reply.startswith(b"\x15engine ") for reply in replies)
    assert instance.closed()
    assert line.ended == "engine"
    assert "answers nobody" in (line.outage or "")


def test_a_request_that_crashes_the_engine_is_no_outage(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for it loses by it: else a candidate could undo every trial that it is about to lose."""
    monkeypatch.setattr("orchestrator.engines.host._LONGEST_DELAY", 0.5)
    engine = kit.program(
        "data = read()\nif b'poison' in data: os._exit(9)\n"
        "try: line.sendall(b'7\\x04<usage finish=\"stop\"/>\\x04')\nexcept OSError: pass"
    )
    line, instance = kit.line(engine)
    assert all(instance.infer("<context>poison</context>").startswith(b"\x15engine ") for _ in range(3))
    assert instance.closed()
    assert (line.ended, line.outage) == ("engine", None)
    assert len(line.engine_faults) == 3


def test_an_engine_that_counts_but_never_infers_closes_the_line_too(kit: Kit) -> None:
    """An agent counts its prompt before each inference: that must not make three failures look like one."""
    engine = kit.engine("[[rule]]\nanswer = '<stop/>'\nfaults = { drop = 1 }\n")
    line, instance = kit.line(engine)
    for number in range(MAX_FAULTS):
        assert instance.ask(count_request(f"<context n='{number}'/>")).isdigit()
        assert b"\x15engine " in instance.infer()
    assert instance.closed()
    assert (line.ended, len(line.engine_faults)) == ("engine", MAX_FAULTS)


def test_an_instance_can_not_let_the_engine_fail_for_ever(kit: Kit) -> None:
    engine = kit.engine(
        "[[rule]]\nwhen = '@f'\nanswer = '<stop/>'\nfaults = { drop = 1 }\n[[rule]]\nanswer = '<stop/>'\n"
    )
    line, instance = kit.line(engine)
    with suppress(ConnectionError):
        for _ in range(2 * MAX_ALL_FAULTS):
            instance.infer("<context f='1'/>")
            assert instance.infer() == b"<stop/>"
    assert len(line.engine_faults) == MAX_ALL_FAULTS
    wait_for(lambda: line.ended == "engine")


def test_lines_that_fail_together_are_an_outage(kit: Kit) -> None:
    engine = kit.engine(
        "[[rule]]\nwhen = '@f'\nanswer = '<stop/>'\nfaults = { drop = 1 }\n[[rule]]\nanswer = '<stop/>'\n"
    )
    pairs = [kit.line(engine, name=f"t{n}", group=group) for n, group in enumerate(["baseline", "one", "one"])]
    pairs[1][1].infer("<context f='1'/>")
    pairs[2][1].infer("<context f='1'/>")
    assert [line.outage for line, _ in pairs] == [None] * 3  # two of one candidate may have agreed on it
    pairs[0][1].infer("<context f='1'/>")
    said = "{} lines of other arms failed at the same time"
    assert [line.outage for line, _ in pairs] == [said.format(2), said.format(1), said.format(1)]


def test_a_trial_that_ends_while_a_stopped_engine_is_silent_tells_of_the_outage(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.broker._SUSPECT", 0.2)
    monkeypatch.setattr("orchestrator.broker._PROBE", 0.3)
    engine = kit.engine()
    engine.wait_ready()
    line, instance = kit.line(engine)
    assert instance.infer() == b"<stop/>"
    assert engine._process is not None
    (program,) = psutil.Process(engine._process.pid).children()
    program.send_signal(signal.SIGSTOP)
    instance.send(infer_request())
    wait_for(lambda: line.engine_silent > 0.3)
    line.close()
    program.send_signal(signal.SIGCONT)
    assert "answers nobody" in (line.outage or "")


def test_a_watcher_that_fails_costs_the_instance_nothing(kit: Kit) -> None:
    def watcher(_: Exchange) -> None:
        raise ValueError("no")

    line, instance = kit.line(kit.engine(), on_exchange=watcher)
    assert instance.infer() == b"<stop/>"
    assert line.notes == ("a watcher of this line failed: no",)


def test_without_a_journal_there_is_no_answer(kit: Kit) -> None:
    line, instance = kit.line(kit.engine())
    assert instance.infer() == b"<stop/>"
    kit.store._connection.execute("PRAGMA query_only=1")
    assert instance.infer() == b"<stop/>\x15engine the exchange can't be recorded"
    assert instance.closed()
    assert line.ended == "journal"
    kit.store._connection.execute("PRAGMA query_only=0")


def test_a_line_may_be_closed_before_it_was_started(kit: Kit, tmp_path: Path) -> None:
    line, _ = kit.line(kit.engine())
    line.close()
    line.close()
    assert line.ended == "stopped"
