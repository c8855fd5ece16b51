"""Runs of one task with SIA_DETERMINISTIC=1, by a scripted engine and by replaying, leave the same bytes."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest

from orchestrator.broker import Budget, Line
from orchestrator.engines.host import EngineHost
from orchestrator.errors import ConfigError
from orchestrator.exchanges import ExchangeStore
from orchestrator.instances import AGENT_DATA, Instance, InstanceSetup, instance_spec, skeletons
from orchestrator.journal import Journal
from sandbox.spec import Limits, Overlay
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import TOP, TrialKit

environments, kit = trial_kit.environments, trial_kit.kit

POLICY = """
[faults]
unclosed = 0.15
fences = 0.1
[[rule]]
when = "@stdin > 0 and not(read_stdin)"
answer = "<read_stdin/>"
[[rule]]
when = "parse_error"
let = { id = "parse_error/@id" }
answer = '<delete id="{id}"/>'
[[rule]]
when = "not(repeat)"
answer = "<repeat>ls; seq $RANDOM | head -c 0</repeat>"
[[rule]]
when = "count(single) < 4"
answer = "<single timeout='20'>seq 300 | tee -a out | tail -n 100; sleep 0.05; wc -l out</single>"
[[rule]]
when = "not(write_stdout)"
answer = "<write_stdout>done</write_stdout>"
[[rule]]
answer = "<stop/>"
"""


@pytest.fixture
def mode() -> str:
    """The rights at hand: they make no difference here."""
    return "user" if os.geteuid() else "root"


class Run(NamedTuple):
    """What a run leaves: the records of its journal, their errors, the agent's logs, how it ended."""

    records: list[bytes]
    errors: list[str]
    logs: bytes
    exit_code: int | None
    said: bytes


def run(kit: TrialKit, number: int, engine: EngineHost, message: str = "do what has to be done ü\n") -> Run:
    """One run of the agent in a sandbox, with everything of its own."""
    store = ExchangeStore(kit.directory / f"run-{number}" / "exchanges")
    kit.stack.callback(store.close)
    journal = Journal.create(store, "run", {"kind": "test"}, timeless=True)  # its name is part of its chain
    build = kit.agent()
    line = Line(engine, journal, Budget(iterations=100), build.schema, lambda ordinal: ordinal)
    line.start()
    lowest = skeletons(kit.host, kit.home.root)
    layers = kit.home.cache / f"layers-{number}"
    data = Overlay(AGENT_DATA, (lowest.data,), *kit.host.make_upper(layers, "data"))
    app = Overlay("/app", (lowest.app,), *kit.host.make_upper(layers, "app"))
    setup = InstanceSetup(build, "/app", (app, data), {"SIA_DETERMINISTIC": "1"}, Limits(seconds=60.0))
    said = bytearray()
    with Instance.start(kit.host, setup, line, None, said.extend, kit.directory / f"stderr-{number}") as instance:
        instance.send(message.encode())
        outcome = instance.wait(60)
    line.close()
    journal.seal()
    assert outcome is not None and journal.verify().problem is None
    logs = b"".join(path.read_bytes() for path in sorted((data.upper / "iterations").glob("*.xml")))
    kit.host.remove(layers)
    records = [entry.record for entry in store.entries(journal.id)]
    errors = [one.error for one in journal if one.error]
    return Run(records, errors, logs, outcome.exit_code, bytes(said))


def replaying(kit: TrialKit, number: int) -> EngineHost:
    """The replay engine over the store of a run."""
    command = ("python", "-m", "orchestrator.engines.replay", str(kit.directory / f"run-{number}"))
    engine = EngineHost("replay", command, TOP, kit.directory / "replay.log")
    kit.stack.callback(engine.close)
    engine.wait_ready()
    return engine


def test_runs_and_their_replay_leave_the_same_bytes(kit: TrialKit) -> None:
    first, second = (run(kit, number, kit.engine(POLICY)) for number in (1, 2))
    assert (first.exit_code, first.said, first.errors) == (0, b"done\n", [])
    assert len(first.records) > 10
    assert first == second
    assert first.logs.count(b"<iteration ") > 8
    engine = replaying(kit, 1)
    assert run(kit, 3, engine) == first
    changed = run(kit, 4, engine, "do what has to be done u\n")
    assert (changed.exit_code, changed.said) == (75, b"")
    assert "engine no recorded count of this prompt" in changed.errors[0]
    assert "in its context at byte" in changed.errors[0]
    assert r"where b'u\n]]>" in changed.errors[0] and r"b'\xc3\xbc\n]]>" in changed.errors[0]  # … u, … ü


@pytest.mark.bad_input
def test_bad_input_task_that_sets_it(kit: TrialKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a task nor the operator's environment reaches it: campaigns run with real ids and a real clock."""
    monkeypatch.setenv("SIA_DETERMINISTIC", "1")
    with pytest.raises(ConfigError) as caught:
        kit.task(files={"environment/Dockerfile": "FROM scratch\nENV SIA_DETERMINISTIC=1\nWORKDIR /app\n"})
    print(caught.value.render())
    spec = instance_spec(InstanceSetup(kit.instance(""), "/app", (), kit.task().task.env))
    assert "SIA_DETERMINISTIC" not in spec.env
