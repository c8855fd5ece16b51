"""A trial ends with a record, whatever the instance does."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent_build import AgentBuild
from orchestrator.broker import Usage
from orchestrator.config import CampaignLimits
from orchestrator.engines.host import EngineHost
from orchestrator.forgeability import read_mark
from orchestrator.journal import Journal
from orchestrator.log_archive import LogArchive
from orchestrator.own_logs import kept_logs
from orchestrator.tasks import load_task
from orchestrator.trial import Stopped, TrialRecord, run_trial
from orchestrator.trial_ending import trial_limits
from sandbox.spec import Limits
from tests.orchestrator import trial_kit
from tests.orchestrator.test_tasks import make_task
from tests.orchestrator.trial_kit import ONE_MODE, TrialKit

environments, kit = trial_kit.environments, trial_kit.kit
pytestmark = pytest.mark.sandbox

ENGINE = """
    import os, socket
    engine = socket.socket(fileno=int(os.environ["SIA_ENGINE_FD"]))
    def ask(request):
        engine.sendall(request + b"\\x04")
        reply = b""
        while not reply.endswith(b"\\x04"):
            data = engine.recv(65536)
            if not data:
                raise SystemExit(9)
            reply += data
        return reply[:-1]
    INFER = b"<infer_xml><system>s</system><schema>x</schema><context/></infer_xml>"
"""
ANSWERS = "open('answer', 'w').write('42')\n"
WORKS = (
    '[[rule]]\nwhen = "not(single)"\nanswer = "<single>cp start.txt seen; echo 42 > answer</single>"\n'
    + trial_kit.STOPS
)


def test_the_standard_agent_completes(kit: TrialKit) -> None:
    seen: list[Usage] = []
    spec = kit.spec(kit.agent(), kit.task())
    record = run_trial(kit.context(WORKS), replace(spec, progress=seen.append, keep_workdir=True))
    print(json.dumps(record.to_json(), indent=1))
    assert (record.outcome, record.reward, record.detail) == ("completed", 1.0, "")
    assert (record.iterations, record.exit_code, record.changes, record.disqualified) == (2, 0, 2, None)
    assert (record.parse_errors, record.deletes, record.repeated_actions) == (0, 0, 0)
    assert (record.tree, record.task_key) == (spec.build.tree, spec.task.key)
    assert record.seconds > 0 and record.verifier_seconds > 0
    assert seen[-1].iterations == 2
    assert (spec.directory / "workdir/seen").read_text() == "start\n"
    assert not (spec.directory / "layers").exists()
    archive = LogArchive(kept_logs(spec.directory))
    assert {"00000001.xml", "00000002.xml"} < set(archive.names), "the agent's own log is kept, compressed"
    assert archive.read("00000002.xml").startswith(b"<iteration system_prompt_hash=")
    journal = Journal.open(kit.store, record.journal)
    assert journal.verify().problem is None and journal.head == record.journal_head
    values = record.to_json()
    assert json.loads(json.dumps(values)) == values


def test_exit_zero_without_work_gives_zero(kit: TrialKit) -> None:
    """And no error of ours, which would undo it, when it closes its data to a supervisor that is not root."""
    record = kit.run("import os; print('hello'); os.chmod('/root/data', 0)")
    assert (record.outcome, record.reward, record.changes) == ("completed", 0.0, 0)
    assert os.geteuid() == 0 or any("can't be read" in note for note in record.notes)


def test_what_it_printed_reaches_the_tests(kit: TrialKit) -> None:
    test = "if grep -q '^42$' /logs/agent/stdout.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
    assert kit.run("print(42)", kit.task(test)).reward == 1.0


def test_places_beside_the_workdir(kit: TrialKit) -> None:
    """Files that a Dockerfile puts elsewhere are writable there, and the tests see what became of them."""
    files = {"environment/Dockerfile": "WORKDIR /app\nCOPY start.txt /data/in/\nENV COLOUR=red\n"}
    task = kit.task('[ "$(cat /data/in/start.txt)" = red ] && echo 1 > /logs/verifier/reward.txt', files=files)
    record = kit.run("import os; open('/data/in/start.txt', 'w').write(os.environ['COLOUR'])", task)
    assert (record.reward, record.changes) == (1.0, 1)
    assert "Dockerfile" not in " ".join(record.notes)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "ended by signal 11"),
        ("raise SystemExit(42)", "exit code 42 without a request to restart"),
        ("this is no python", "exit code 1"),
    ],
)
@ONE_MODE
def test_bad_input_instance_exits_at_once(kit: TrialKit, program: str, detail: str) -> None:
    record = kit.run(program)
    print(record.outcome, record.detail)
    assert (record.outcome, record.reward, record.detail) == ("crashed", 0.0, detail)


@pytest.mark.bad_input
def test_bad_input_instance_prints_binary_garbage(kit: TrialKit) -> None:
    program = """
    import os
    block = os.urandom(65536)
    for _ in range(4000):
        os.write(1, block); os.write(2, block)
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    task = kit.task("tail -c 100 /logs/agent/stdout.txt; echo 1 > /logs/verifier/reward.txt")
    record = kit.run(program, task)
    print(record.notes)
    assert (record.outcome, record.reward) == ("completed", 1.0)
    assert any("bytes of the instance's output were dropped" in note for note in record.notes)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64_000  # kB, of 262 MB each
    kept = kit.home.campaigns / "c1" / record.id
    assert (kept / "stdout.txt").stat().st_size < 4_300_000 > (kept / "stderr.txt").stat().st_size


@pytest.mark.bad_input
def test_bad_input_instance_fills_its_disk(kit: TrialKit) -> None:
    program = (
        ANSWERS
        + """
block = b"x" * 1_000_000
for number in range(10_000):
    with open(f"big{number}", "wb") as file:
        for _ in range(10):
            file.write(block)
    """
    )
    record = kit.run(program, disk_mb=50)
    print(record.outcome, record.detail)
    assert (record.outcome, record.detail) == ("limit", "disk")
    assert record.reward == 1.0  # what is there is verified all the same


def test_uppers_in_memory_make_no_difference(kit: TrialKit) -> None:
    """Same files, same changes, same reward; what filled its own is verified all the same."""
    context, task, agent = kit.context(WORKS), kit.task(), kit.agent()
    disk, memory = (
        run_trial(context, replace(kit.spec(agent, task, upper=upper), keep_workdir=True))
        for upper in ("disk", "memory")
    )
    same = ("outcome", "detail", "reward", "changes", "iterations", "exit_code", "disqualified", "notes", "task_key")
    assert [getattr(disk, name) for name in same] == [getattr(memory, name) for name in same]
    assert (memory.outcome, memory.reward, memory.changes) == ("completed", 1.0, 2)
    trial = kit.home.campaigns / "c1" / memory.id
    assert (trial / "workdir/seen").read_text() == "start\n"
    assert "00000002.xml" in LogArchive(kept_logs(trial)).names, "its own log was read there"
    program = ANSWERS + "with open('big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))"
    full = kit.run(program, task, upper="memory", disk_mb=20)
    assert (full.outcome, full.detail, full.reward, full.changes) == ("limit", "disk", 1.0, 2)
    assert not list(kit.home.campaigns.glob("*/*/layers")) and not list(kit.home.campaigns.glob("*/*/verifier"))
    assert not kit.host.ramdisks._ramdisks, "the memory is given back with the trial, not with the campaign"


@pytest.mark.bad_input
def test_bad_input_instance_forks_without_end(kit: TrialKit) -> None:
    program = (
        ANSWERS
        + """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.1)
    """
    )
    begun = time.monotonic()
    record = kit.run(program, processes=40, seconds=1.0)
    print(record.outcome, record.detail)
    assert (record.outcome, record.reward) == ("limit", 1.0)
    assert record.detail in ("seconds", "processes")
    assert time.monotonic() - begun < 20


@pytest.mark.bad_input
def test_bad_input_instance_never_ends(kit: TrialKit) -> None:
    """The limit holds for running work; the stricter of the campaign's and the task's counts, and is reported."""
    task = kit.task(toml="[agent]\ntimeout_sec = 0.5\n")
    begun = time.monotonic()
    record = kit.run(ANSWERS + "import time\ntime.sleep(1000)", task, seconds=600)
    assert (record.outcome, record.detail, record.reward) == ("limit", "seconds", 1.0)
    assert 0.4 < record.seconds < 3 and time.monotonic() - begun < 15


@pytest.mark.bad_input
@pytest.mark.parametrize("how", ["engine.close()", "engine.shutdown(socket.SHUT_RDWR)"])
@ONE_MODE
def test_bad_input_instance_closes_its_engine_socket(kit: TrialKit, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on: it is ended within seconds, as crashed, and not at the limit of time with its files judged."""
    monkeypatch.setattr("orchestrator.trial.CLOSED_SECONDS", 2.0)
    record = kit.run(
        ENGINE + ANSWERS.join(("\n    ", f"    {how}\n    import time\n    time.sleep(1000)\n")), seconds=60
    )
    print(record.outcome, record.detail)
    assert (record.outcome, record.detail) == ("crashed", "it closed its engine line and ran on")
    assert record.reward == 0.0 and record.seconds < 8


@ONE_MODE
def test_an_instance_may_close_its_line_before_it_ends(kit: TrialKit) -> None:
    program = ENGINE + ANSWERS.join(("\n    ", "    engine.close()\n    import time\n    time.sleep(1)\n"))
    record = kit.run(program, seconds=60)
    assert (record.outcome, record.reward) == ("completed", 1.0)


SLEEPY_ENGINE = """
import pathlib, select, socket, sys
listener = socket.socket(fileno=0)
while True:
    line, _ = listener.accept()
    data = b""
    while not data.endswith(b"\\x04"):
        data += line.recv(65536)
    line.sendall(b"<reasoning>and")
    poller = select.poll()
    poller.register(line, 0)
    poller.poll(30000)
    pathlib.Path(sys.argv[1]).write_text("cancelled")
    line.close()
"""


@pytest.mark.parametrize("how", ["engine.close()", "engine.shutdown(socket.SHUT_RDWR)"])
@ONE_MODE
def test_a_generation_is_cancelled_when_the_instance_closes_the_line(
    kit: TrialKit, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.trial.CLOSED_SECONDS", 2.0)
    told = kit.directory / "told"
    engine = EngineHost("sleepy", ("python", "-c", SLEEPY_ENGINE, str(told)), kit.directory, kit.directory / "log")
    engine.start()
    kit.stack.callback(engine.close)
    program = (
        ENGINE
        + f"""
    import time
    engine.sendall(INFER + b"\\x04")
    engine.recv(5)
    {how}
    time.sleep(1000)
"""
    )
    begun = time.monotonic()
    context = replace(kit.context(), engine=engine)
    record = run_trial(context, kit.spec(kit.instance(program), kit.task(), seconds=60.0))
    assert (record.outcome, record.iterations) == ("crashed", 0), record.detail
    assert told.read_text() == "cancelled" and time.monotonic() - begun < 25


@pytest.mark.bad_input
@ONE_MODE
def test_bad_input_instance_sends_half_a_request(kit: TrialKit) -> None:
    record = kit.run(ENGINE + "\n    engine.sendall(b'<infer_xml><system>half')\n")
    print(record.outcome, record.detail)
    assert (record.outcome, record.reward, record.iterations) == ("completed", 0.0, 0)


@ONE_MODE
def test_budget_ends_it_in_order(kit: TrialKit) -> None:
    program = (
        ENGINE
        + ANSWERS.join(("\n    ", ""))
        + """
    while not ask(INFER).startswith(b"\\x15budget"):
        pass
    """
    )
    record = kit.run(program, iterations=3)
    assert (record.outcome, record.detail, record.iterations, record.reward) == ("limit", "iterations", 3, 1.0)


@ONE_MODE
def test_one_that_ignores_the_end_of_its_budget_is_ended(kit: TrialKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.trial.GRACE_SECONDS", 0.3)
    record = kit.run(ENGINE + "\n    while True: ask(INFER)\n", iterations=2)
    assert (record.outcome, record.detail, record.iterations) == ("limit", "iterations", 2)


@ONE_MODE
def test_unknown_cost_counts_as_over_the_limit(kit: TrialKit) -> None:
    program = ENGINE + "\n    while not ask(INFER).startswith(b'\\x15budget'): pass\n"
    record = kit.run(program, cost=1.0)
    assert (record.outcome, record.detail, record.cost) == ("limit", "cost", None)


def test_memory_limit(kit: TrialKit) -> None:
    record = kit.run("x = bytearray(600_000_000)\nimport time; time.sleep(20)", memory_mb=200)
    assert (record.outcome, record.detail) in (("limit", "memory"), ("crashed", "ended by signal 9"))
    assert record.memory_enforcer != "none"


@ONE_MODE
def test_engine_outage_is_not_the_instances_fault(kit: TrialKit) -> None:
    context = kit.context()
    context.engine.close()
    program = kit.instance(ENGINE + "\n    ask(INFER); raise SystemExit(1)\n")
    record = run_trial(context, kit.spec(program, kit.task()))
    print(record.outcome, record.detail)
    assert (record.outcome, record.reward) == ("invalid", None)


def test_broken_set_up_is_invalid(kit: TrialKit) -> None:
    build = kit.instance("pass")
    build.bundle.unlink()
    record = kit.run(build)
    print(record.detail)
    assert (record.outcome, record.reward) == ("invalid", None)
    assert "could not be set up" in record.detail


def test_task_that_its_oracle_shows_broken_is_invalid(kit: TrialKit) -> None:
    task = kit.task("exit 0")
    record = kit.run("pass", task)
    print(record.detail)
    assert (record.outcome, record.reward) == ("invalid", None)
    mark = read_mark(kit.home, task.key)
    assert mark is not None and not mark.oracle


def test_verifier_that_the_instance_crashes_gives_zero(kit: TrialKit) -> None:
    task = kit.task("bash ./code.sh 2>/dev/null\n" + trial_kit.FORTY_TWO)
    record = kit.run(ANSWERS + "open('code.sh', 'w').write('kill -9 -1')", task)
    print(record.notes)
    assert (record.outcome, record.reward) == ("completed", 0.0)
    assert any("ended by signal 9" in note for note in record.notes)


@ONE_MODE
def test_instruction_longer_than_a_pipe(kit: TrialKit) -> None:
    files = {"instruction.md": "long " * 100_000}
    program = "import os\nn = 0\nwhile n < 500_000: n += len(os.read(0, 1000))\n" + ANSWERS
    assert kit.run(program, kit.task(files=files)).reward == 1.0


def test_stop_leaves_nothing(kit: TrialKit) -> None:
    stop = threading.Event()
    spec = replace(kit.spec(kit.instance("import time; time.sleep(100)"), kit.task()), stop=stop)
    threading.Timer(0.5, stop.set).start()
    begun = time.monotonic()
    with pytest.raises(Stopped):
        run_trial(kit.context(), spec)
    assert time.monotonic() - begun < 10
    assert not (spec.directory / "layers").exists()
    assert [path for path in kit.home.run.iterdir() if path.is_socket()] == []


def test_many_at_once(kit: TrialKit) -> None:
    context, build, task = kit.context(WORKS), kit.agent(), kit.task()
    records: list[TrialRecord] = []
    specs = [kit.spec(build, task) for _ in range(6)]
    threads = [threading.Thread(target=lambda s: records.append(run_trial(context, s)), args=(s,)) for s in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(record.outcome, record.reward) for record in records] == [("completed", 1.0)] * 6


def test_the_stricter_limit_counts(tmp_path: Path) -> None:
    toml = "[agent]\ntimeout_sec = 30\n[environment]\nmemory_mb = 512\nstorage_mb = 5000\n"
    task = load_task(make_task(tmp_path, toml=toml))
    limits = trial_limits(CampaignLimits(seconds=60.0, memory_mb=1024, disk_mb=100, processes=9), task)
    assert limits == Limits(memory_mb=512, processes=9, disk_mb=100, seconds=30.0)
    plain = load_task(make_task(tmp_path, "plain"))
    assert trial_limits(CampaignLimits(seconds=60.0), plain) == Limits(seconds=60.0)


@ONE_MODE
def test_record_of_someone_elses_agent(kit: TrialKit) -> None:
    """A build without a schema: answers are unguided, and the record says so."""
    build: AgentBuild = replace(kit.instance(ENGINE + "\n    ask(INFER)\n"), schema=b"")
    record = kit.run(build)
    print(record.notes)
    assert record.outcome == "completed" and record.iterations == 1


def test_directories_nested_without_end_stop_no_campaign(kit: TrialKit) -> None:
    """In the workdir and in the log: neither may raise, since a candidate that loses would stop the campaign."""
    program = (
        ANSWERS
        + """
import os
for place in ("/app", "/root/data/iterations"):
    os.chdir(place)
    for _ in range(1200):
        os.mkdir("a")
        os.chdir("a")
"""
    )
    record = kit.run(program, seconds=20)
    assert (record.outcome, record.reward) == ("completed", 1.0), record.detail
    assert any("nested" in note and "own log" in note for note in record.notes)
    assert record.changes > 0
