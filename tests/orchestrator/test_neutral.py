"""What an instance can read about its mounts says nothing about whether it is main, on trial, or being checked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import conformance, garbage, neutral
from orchestrator.broker import Budget, Line
from orchestrator.data_layers import Levels
from orchestrator.generations import Data
from orchestrator.instances import Instance, InstanceSetup
from orchestrator.journal import Journal
from orchestrator.main_instance import WORKDIR
from orchestrator.task_files import prepare
from orchestrator.tasks import load_task
from orchestrator.trial import run_trial
from sandbox import orphans
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import TrialKit

environments, kit = trial_kit.environments, trial_kit.kit
pytestmark = pytest.mark.sandbox

# Everything that the kernel tells a process about its mounts, between marks.
PROGRAM = """
import sys
print("<<<" + open("/proc/self/mountinfo").read() + ">>>", flush=True)
"""


def seen(said: str) -> list[str]:
    """Mounts as an instance sees them, with what differs from launch to launch by chance made equal."""
    lines = said.partition("<<<")[2].partition(">>>")[0].splitlines()
    assert lines
    found = []
    for line in lines:
        words = line.split()
        kept = " ".join([words[3], words[4], words[5], *words[6:]])
        kept = re.sub(r"\b[0-9a-f]{16}\b", "HEX", kept)  # neutral names
        kept = re.sub(r"/s-[0-9]+-[0-9a-f]{8}\b", "/SOCKET", kept)
        found.append(re.sub(r"(master|shared|propagate_from):[0-9]+", r"\1", kept))
    return found


def as_main(kit: TrialKit, kind: Data) -> str:
    """What the main instance says, started as `MainInstance` does it."""
    said = bytearray()
    journal = Journal.create(kit.store, "main", {"kind": "main"})
    build = kit.instance(PROGRAM)
    line = Line(kit.engine(), journal, Budget(), build.schema, lambda ordinal: ordinal)
    line.start()
    socket = kit.server.listen("main")
    setup = InstanceSetup(build, WORKDIR, Levels(kit.home).prepare(kit.host, kind))
    with Instance.start(kit.host, setup, line, socket, said.extend, kit.directory / "main.txt") as instance:
        assert instance.wait(30) is not None
    line.close()
    kit.server.forget(socket)
    return said.decode()


def task_of(kit: TrialKit) -> Path:
    """Where a campaign keeps copies of its tasks."""
    return neutral.directory(kit.home.root, kit.home.campaigns / "c1/tasks")


def as_trial(kit: TrialKit) -> str:
    """What a trial says of the same program."""
    task = kit.task()
    task = prepare(load_task(task.task.path), kit.host, task_of(kit))
    spec = kit.spec(kit.instance(PROGRAM), task)
    run_trial(kit.context(), spec)
    assert not (spec.directory / "layers").is_symlink()  # nothing of it is left
    return (spec.directory / "stdout.txt").read_text()


@pytest.fixture
def same_program(kit: TrialKit) -> Iterator[TrialKit]:
    """A kit whose builds of one program lie at one path, as exports of one commit do."""
    built = kit.instance(PROGRAM)
    kit.instance = lambda program: built  # type: ignore[method-assign]
    yield kit


def test_main_and_a_trial_see_the_same_mounts(same_program: TrialKit) -> None:
    kit = same_program
    main, trial = seen(as_main(kit, Data((), 1, 0))), seen(as_trial(kit))
    sized = re.compile(r",?(size|nr_inodes)=[0-9]+k?")  # limits are the campaign's and the task's
    assert [sized.sub("", line) for line in main] == [sized.sub("", line) for line in trial]
    text = "\n".join(main + trial)
    assert "HEX" in text
    for telling in ("campaigns", "trial", "levels", "main", "tasks", "c1", "export-x", "conformance"):
        assert telling not in text.replace(str(kit.directory), ""), telling


def test_a_frozen_level_is_one_more_layer_and_nothing_else(same_program: TrialKit) -> None:
    kit = same_program
    as_main(kit, Data((), 1, 0))
    layers = r"(lowerdir\+?=[^, ]*)"
    first, later = (
        re.sub(layers, "", "\n".join(seen(as_main(kit, data)))) for data in (Data((1,), 2, 0), Data((), 3, 0))
    )
    assert first == later


def test_a_conformance_check_sees_what_the_others_see(same_program: TrialKit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = same_program
    outputs: list[bytearray] = []
    real = Instance.start

    def start(host, setup, line, socket, stdout, stderr):  # type: ignore[no-untyped-def]
        said = bytearray()
        outputs.append(said)
        return real(host, setup, line, socket, lambda piece: (said.extend(piece), stdout(piece)), stderr)

    monkeypatch.setattr(conformance.Instance, "start", start)
    conformance.check(kit.host, kit.instance(PROGRAM))
    monkeypatch.undo()
    checked = seen(next(said for said in outputs if said).decode())
    sized = re.compile(r",?(size|nr_inodes)=[0-9]+k?")
    main = seen(as_main(kit, Data((), 1, 0)))
    assert [sized.sub("", line) for line in checked] == [sized.sub("", line) for line in main]
    assert not list((kit.host.state / "conformance").iterdir())


def test_names_are_stable_and_say_nothing_without_the_key(tmp_path: Path) -> None:
    one = neutral.place(tmp_path, tmp_path / "main/levels/1")
    assert neutral.place(tmp_path, tmp_path / "main/levels/1") == one
    assert one.parent == tmp_path / "layers" and re.fullmatch("[0-9a-f]{16}", one.name)
    assert (tmp_path / "layers/.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "layers").iterdir()] == [".key"]
    other = tmp_path / "other"
    assert neutral.place(other, other / "main/levels/1").name != one.name


def test_what_a_killed_trial_left_is_found_by_its_link(tmp_path: Path) -> None:
    link = tmp_path / "campaigns/c1/trials/t1/layers"
    target = neutral.place(tmp_path, link)
    neutral.link(link, target)
    (target / "0/upper").mkdir(parents=True)
    kept = neutral.directory(tmp_path, tmp_path / "main/levels/1/data")
    assert {
        orphan.what for orphan in orphans.look(tmp_path) if orphan.kind == "layers"
    } == set()  # nobody was ever here
    (tmp_path / orphans.LOCK).touch()
    assert [orphan.what for orphan in orphans.look(tmp_path) if orphan.kind == "layers"] == [str(target), str(link)]
    assert kept.is_dir() and link.resolve() == target
    link.unlink()
    link.symlink_to(os.path.relpath(tmp_path / "elsewhere", link.parent))  # never what lies outside
    (tmp_path / "elsewhere").mkdir()
    assert [orphan.what for orphan in orphans.look(tmp_path) if orphan.kind == "layers"] == [str(link)]


def test_directories_of_earlier_versions_are_used_as_they_are(kit: TrialKit) -> None:
    old = kit.home.main / "levels/1"
    old.mkdir(parents=True)
    upper, _ = kit.host.make_upper(old, "data")
    (upper / "user").mkdir()
    kit.host.own(upper)
    app, data = Levels(kit.home).prepare(kit.host, Data((), 1, 0))
    assert data.upper == upper and app.upper != old / "app/upper" and (old / "app/upper").resolve() == app.upper
    assert garbage.size_of(upper) > 0
    Levels(kit.home).remove(kit.host, 1)
    assert not old.exists() and not app.upper.exists()
