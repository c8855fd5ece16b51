"""Tasks in the Harbor layout: what is read, what is refused, what is only noted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator import tasks
from orchestrator.agent_build import AgentBuild
from orchestrator.errors import ConfigError, SiaError, UsageError
from orchestrator.instances import InstanceSetup, instance_spec
from orchestrator.task_files import TaskFiles, content_key, prepare
from orchestrator.tasks import find_tasks, load_task
from orchestrator.verifier import VerifierTools, verifier_spec
from sandbox.host import Host


def make_task(root: Path, name: str = "sample", toml: str = "", dockerfile: str | None = None) -> Path:
    """A task directory with one starting file, a test that gives 1 when `answer` holds 42, and its oracle."""
    task = root / name
    for directory in ("environment/data", "tests", "solution"):
        (task / directory).mkdir(parents=True)
    (task / "instruction.md").write_text("Write 42 into answer.\n")
    (task / "task.toml").write_text(toml)
    (task / "environment/data/start.txt").write_text("start\n")
    (task / "environment/run.sh").write_text("#!/bin/sh\n")
    (task / "environment/run.sh").chmod(0o755)
    (task / "tests/test.sh").write_text(
        'if [ "$(cat answer 2>/dev/null)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
    )
    (task / "solution/solve.sh").write_text("echo 42 > answer\n")
    if dockerfile is not None:
        (task / "environment/Dockerfile").write_text(dockerfile)
    return task


def refusal(directory: Path) -> str:
    """The message of the SiaError that loading gives."""
    with pytest.raises(SiaError) as caught:
        load_task(directory)
    print(caught.value.render())
    return caught.value.render()


def test_defaults_and_values(tmp_path: Path) -> None:
    plain = load_task(make_task(tmp_path, "plain"))
    assert (plain.workdir, plain.verifier_timeout, plain.agent_timeout) == ("/app", 600.0, None)
    assert (plain.split, plain.safe_path, plain.allow_internet, plain.notes) == ("train", True, False, ())
    toml = """
    version = "1.0"
    [agent]
    timeout_sec = 60
    [verifier]
    timeout_sec = 30.5
    safe_path = false
    [environment]
    cpus = 2
    memory = "2G"
    storage_mb = 512
    workdir = "/srv/work"
    env = { A = "b" }
    [metadata]
    difficulty = "easy"
    split = "sealed"
    """
    full = load_task(make_task(tmp_path, "full", toml))
    assert (full.agent_timeout, full.verifier_timeout, full.cpus, full.memory_mb) == (60.0, 30.5, 2, 2048)
    assert (full.storage_mb, full.workdir, full.env, full.split) == (512, "/srv/work", {"A": "b"}, "sealed")
    assert not full.safe_path
    assert full.metadata["difficulty"] == "easy"


@pytest.mark.bad_input
def test_bad_input_task_toml_missing(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (task / "task.toml").unlink()
    assert "task.toml: file not found" in refusal(task)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("[agent\n", "not valid TOML"),
        ('[agent]\ntimeout_sec = "60"\n', "agent.timeout_sec"),
        ("[verifier]\ntimeout_sec = -1\n", "verifier.timeout_sec"),
        ("[verifier]\ntimeout_sec = nan\n", "verifier.timeout_sec"),
        ("[environment]\nmemory_mb = -5\n", "environment.memory_mb"),
        ("[environment]\nmemory_mb = 1.5\n", "environment.memory_mb"),
        ('[environment]\nmemory = "much"\n', "environment.memory"),
        ("[environment]\nallow_internet = 1\n", "environment.allow_internet"),
        ("[environment]\ngpus = 1\n", "environment.gpus"),
        ("environment = 5\n", "environment"),
        ('[metadata]\nsplit = "secret"\n', "metadata.split"),
        ('[environment]\nenv = { "A B" = "c" }\n', "environment.env"),
    ],
)
def test_bad_input_task_toml(tmp_path: Path, toml: str, expected: str) -> None:
    message = refusal(make_task(tmp_path, toml=toml))
    assert expected in message
    assert "task.toml" in message and "fix:" in message


@pytest.mark.bad_input
def test_bad_input_empty_workdir(tmp_path: Path) -> None:
    assert "plain absolute path" in refusal(make_task(tmp_path, toml='[environment]\nworkdir = ""\n'))


@pytest.mark.bad_input
def test_bad_input_unknown_keys_are_notes(tmp_path: Path) -> None:
    task = load_task(make_task(tmp_path, toml='colour = "red"\n[environment]\nbuild_timeout_sec = 5.0\n'))
    print(task.notes)
    assert task.notes == ("task.toml: unknown key colour", "task.toml: unknown key environment.build_timeout_sec")


@pytest.mark.bad_input
def test_bad_input_no_test_script(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    (task / "tests/test.sh").unlink()
    assert "the task has no tests/test.sh" in refusal(task)


@pytest.mark.bad_input
@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe", b"x" * 2_000_000])
def test_bad_input_instruction(tmp_path: Path, content: bytes | None) -> None:
    task = make_task(tmp_path)
    (task / "instruction.md").unlink()
    if content is not None:
        (task / "instruction.md").write_bytes(content)
    assert "instruction.md" in refusal(task)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "workdir",
    [
        "/",
        "/root",
        "/root/sia",
        "/root/data/x",
        "/usr",
        "/usr/src/app",
        "/etc",
        "/tmp",
        "/tmp/x",
        "/run",
        "/tests",
        "/logs/agent",
        "/opt",
        "/home",
        "app",
        "/app/",
        "/app/../etc",
        "//app",
        "/proc/x",
        "/home/agent",
    ],
)
def test_bad_input_protected_workdir(tmp_path: Path, workdir: str) -> None:
    message = refusal(make_task(tmp_path, toml=f'[environment]\nworkdir = "{workdir}"\n', name="w"))
    assert "protected place" in message or "plain absolute path" in message


def test_workdirs_that_are_fine(tmp_path: Path) -> None:
    for number, workdir in enumerate(("/app", "/root/project", "/opt/work", "/srv", "/testsuite", "/home/user")):
        toml = f'[environment]\nworkdir = "{workdir}"\n'
        assert load_task(make_task(tmp_path, str(number), toml)).workdir == workdir


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("RUN apt-get install -y jq", "needs an image build"),
        ("run make", "needs an image build"),
        ("FROM a AS b\nFROM c", "several stages"),
        ("COPY --from=b /x /y", "--from"),
        ("COPY nothing.txt /app/", "no 'nothing.txt'"),
        ("COPY ../tests /app/", "outside environment/"),
        ("COPY data", "without a source"),
        ('COPY "data /app', "can't be parsed"),
        ("ADD https://example.org/x /app/", "fetches or unpacks"),
        ("TEACH x", "unknown instruction"),
        ("COPY run.sh /usr/bin/run.sh", "protected place"),
        ("COPY run.sh /run.sh", "protected place"),
    ],
)
def test_bad_input_dockerfile(tmp_path: Path, line: str, expected: str) -> None:
    message = refusal(make_task(tmp_path, dockerfile=f"FROM debian\n{line}\n"))
    assert expected in message


def test_dockerfile_lines_are_honoured(tmp_path: Path) -> None:
    dockerfile = """# comment
    FROM python:3.12
    ARG base=/srv
    ENV WHERE=${base}/work NAME="two words" \\
        OTHER=x
    WORKDIR $WHERE
    COPY data .
    COPY ["run.sh", "tool"]
    COPY --chown=1:1 run.sh /data/in/
    CMD ["bash"]
    """
    task = load_task(make_task(tmp_path, dockerfile=dockerfile))
    assert task.workdir == "/srv/work"
    assert task.env == {"WHERE": "/srv/work", "NAME": "two words", "OTHER": "x"}
    assert task.places == ("/srv/work", "/data/in")
    assert [copy.dest for copy in task.copies] == ["/srv/work", "/srv/work/tool", "/data/in/run.sh"]
    assert task.notes == (
        "Dockerfile: host instead of python:3.12",
        "Dockerfile: --chown=1:1 is ignored",
        "Dockerfile: CMD is ignored",
    )


def test_environment_link_out_is_refused(tmp_path: Path) -> None:
    task = make_task(tmp_path, dockerfile="COPY link /app/\n")
    (task / "environment/link").symlink_to("/etc/passwd")
    assert "leads out of environment/" in refusal(task)


def test_files_are_copied_once(tmp_path: Path) -> None:
    directory = make_task(tmp_path / "tasks", dockerfile="WORKDIR /app\nCOPY data /app/in/\nCOPY run.sh /data/\n")
    (directory / "environment/data/link").symlink_to("start.txt")
    with Host.detect(tmp_path / "state") as host:
        files = prepare(load_task(directory), host, tmp_path / "state/files")
        work = files.roots["/app"]
        assert (work / "in/start.txt").read_text() == "start\n"
        assert (work / "in/link").readlink() == Path("start.txt")
        assert os.access(files.roots["/data"] / "run.sh", os.X_OK)
        assert (files.tests / "test.sh").is_file()
        assert files.solution is not None
        assert (work / "in/start.txt").stat().st_uid == host.uid
        before = work.stat().st_ino
        assert prepare(load_task(directory), host, tmp_path / "state/files") == files
        assert work.stat().st_ino == before
        (directory / "environment/data/start.txt").write_text("changed\n")
        assert prepare(load_task(directory), host, tmp_path / "state/files").key != files.key
        assert (work / "in/start.txt").read_text() == "start\n"


def test_workdir_below_a_copied_place(tmp_path: Path) -> None:
    directory = make_task(tmp_path, dockerfile="WORKDIR /srv/work\nCOPY run.sh /srv/run.sh\n")
    task = load_task(directory)
    assert task.places == ("/srv",)
    with Host.detect(tmp_path / "state") as host:
        root = prepare(task, host, tmp_path / "state/files").roots["/srv"]
    assert (root / "work").is_dir() and (root / "run.sh").is_file()


def test_content_key_sees_everything(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    keys = {content_key(task)}
    (task / "environment/run.sh").chmod(0o644)
    keys.add(content_key(task))
    (task / "environment/data/start.txt").rename(task / "environment/data/begin.txt")
    keys.add(content_key(task))
    (task / "environment/link").symlink_to("run.sh")
    keys.add(content_key(task))
    assert len(keys) == 4


@pytest.mark.bad_input
def test_bad_input_special_file(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    os.mkfifo(task / "environment/pipe")
    with pytest.raises(ConfigError) as caught:
        content_key(task)
    print(caught.value.render())
    assert "neither file, directory nor link" in caught.value.what


def test_find_tasks(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        make_task(tmp_path / "tasks", name)
    (tmp_path / "tasks/notes").mkdir()
    assert [task.name for task in find_tasks(["tasks/c", "tasks/*"], tmp_path)] == ["c", "a", "b"]
    with pytest.raises(UsageError, match="no task matches"):
        find_tasks(["other/*"], tmp_path)
    with pytest.raises(UsageError, match="no such task directory"):
        find_tasks(["tasks/x"], tmp_path)
    make_task(tmp_path / "more", "a")
    with pytest.raises(ConfigError, match="two tasks are named 'a'"):
        find_tasks(["tasks/*", "more/a"], tmp_path)


def test_variables_that_sia_sets_are_named(tmp_path: Path) -> None:
    """A task's variable that has no effect is a note; the lists are what the sandboxes really do."""
    names = (*tasks.FIXED, *tasks.FIXED_IN_INSTANCE, *tasks.FIXED_IN_TESTS, "REGION")
    toml = "[environment.env]\n" + "".join(f'{name} = "mine"\n' for name in names)
    task = load_task(make_task(tmp_path, toml=toml))
    assert len(task.notes) == len(names) - 1
    assert task.notes[0] == "environment.env: PATH is set by SIA, so this value has no effect"
    assert "environment.env: PYTHONPATH is set by SIA, so this value has no effect in the instance" in task.notes

    build = AgentBuild("", "", tmp_path, tmp_path, tmp_path, ("agent",), b"")
    inside = instance_spec(InstanceSetup(build, "/app", (), task.env)).env
    assert {name for name in names if inside[name] != "mine"} == {*tasks.FIXED, *tasks.FIXED_IN_INSTANCE}
    assert set(inside) - {*names, "SIA_ENGINE_FD"} == set()
    tools = VerifierTools(tmp_path, tmp_path, tmp_path)
    tests = verifier_spec(TaskFiles(task, {}, tmp_path, None, ""), (), tmp_path, tools).env
    assert {name for name in names if tests[name] != "mine"} == {*tasks.FIXED, *tasks.FIXED_IN_TESTS}
    assert set(tests) - set(names) == set()


def test_safe_path_is_a_tasks_own_where_it_says_so(tmp_path: Path) -> None:
    toml = '[verifier]\nsafe_path = false\n[environment]\nenv = { PYTHONSAFEPATH = "1" }\n'
    assert load_task(make_task(tmp_path, toml=toml)).notes == ()
