"""Two runs of one task with SIA_DETERMINISTIC=1 and a scripted engine leave the same bytes; campaigns never set it."""

from __future__ import annotations

import os

import pytest

from orchestrator.broker import Budget, Line
from orchestrator.errors import ConfigError
from orchestrator.exchanges import ExchangeStore
from orchestrator.instances import AGENT_DATA, Instance, InstanceSetup, data_skeleton, instance_spec
from orchestrator.journal import Journal
from sandbox.spec import Limits, Overlay
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import TrialKit

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


def run(kit: TrialKit, number: int) -> tuple[list[bytes], bytes]:
    """One run in a sandbox with everything of its own; the records of its journal, and the agent's logs."""
    store = ExchangeStore(kit.directory / f"run-{number}" / "exchanges")
    kit.stack.callback(store.close)
    journal = Journal.create(store, "run", {"kind": "test"}, timeless=True)  # its name is part of its chain
    build = kit.agent()
    line = Line(kit.engine(POLICY), journal, Budget(iterations=100), build.schema, lambda ordinal: ordinal)
    line.start()
    skeleton = data_skeleton(kit.directory / f"skeleton-{number}")
    empty = kit.directory / f"empty-{number}"
    empty.mkdir()
    kit.host.own(skeleton)
    kit.host.own(empty)
    layers = kit.home.cache / f"layers-{number}"
    data = Overlay(AGENT_DATA, (skeleton,), *kit.host.make_upper(layers, "data"))
    app = Overlay("/app", (empty,), *kit.host.make_upper(layers, "app"))
    setup = InstanceSetup(build, "/app", (app, data), {"SIA_DETERMINISTIC": "1"}, Limits(seconds=60.0))
    said = bytearray()
    with Instance.start(kit.host, setup, line, None, said.extend, kit.directory / f"stderr-{number}") as instance:
        instance.send("do what has to be done ü\n".encode())
        outcome = instance.wait(60)
    line.close()
    journal.seal()
    assert outcome is not None and outcome.exit_code == 0, (kit.directory / f"stderr-{number}").read_text()
    assert said == b"done\n" and journal.verify().problem is None
    logs = b"".join(path.read_bytes() for path in sorted((data.upper / "iterations").glob("*.xml")))
    kit.host.remove(layers)
    return [entry.record for entry in store.entries(journal.id)], logs


def test_two_runs_leave_the_same_bytes(kit: TrialKit) -> None:
    (first, logs), (second, again) = run(kit, 1), run(kit, 2)
    assert len(first) > 10
    assert first == second
    assert logs == again and logs.count(b"<iteration ") > 8


@pytest.mark.bad_input
def test_bad_input_task_that_sets_it(kit: TrialKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a task nor the operator's environment reaches it: campaigns run with real ids and a real clock."""
    monkeypatch.setenv("SIA_DETERMINISTIC", "1")
    with pytest.raises(ConfigError) as caught:
        kit.task(files={"environment/Dockerfile": "FROM scratch\nENV SIA_DETERMINISTIC=1\nWORKDIR /app\n"})
    print(caught.value.render())
    spec = instance_spec(InstanceSetup(kit.instance(""), "/app", (), kit.task().task.env))
    assert "SIA_DETERMINISTIC" not in spec.env
