"""The supervisor's repository: made from the checkout without touching it, exports, and main by compare-and-swap."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator import exports
from orchestrator.errors import ConfigError, Failed, Refused
from orchestrator.gitio import Git, quoted
from orchestrator.repository import Repository

from .conftest import AgentRepo, digest, make_agent_repo, show

PATHS = ("instance", "procedures", "tools", "action_schema.xsd")


def test_first_use_takes_head_with_its_history(agent_repo: AgentRepo) -> None:
    first = agent_repo.git("rev-parse", "HEAD")
    second = agent_repo.commit({"instance/text.py": "GREETING = 1\n"})
    repository = agent_repo.repository
    assert repository.head() == second
    assert repository.git.is_ancestor(first, second)
    assert agent_repo.git("status", "--porcelain") == ""


def test_main_does_not_follow_the_checkout(agent_repo: AgentRepo) -> None:
    before = agent_repo.repository.head()
    agent_repo.commit({"instance/text.py": "GREETING = 2\n"})
    assert agent_repo.repository.head() == before


def test_the_checkout_is_never_written(agent_repo: AgentRepo) -> None:
    agent_repo.branch("better", {"instance/text.py": "GREETING = 2\n"})
    before = digest(agent_repo.path)
    repository = agent_repo.repository
    commit = repository.fetch_candidate("better")
    repository.export(commit, PATHS, agent_repo.home.generations)
    repository.move_main(commit, repository.head())
    assert digest(agent_repo.path) == before


def test_branches_tags_commits_and_revisions(agent_repo: AgentRepo) -> None:
    commit = agent_repo.branch("feature/deep", {"instance/text.py": "GREETING = 2\n"})
    agent_repo.git("tag", "-a", "-m", "tagged", "v1", commit)
    agent_repo.branch("v1", {"instance/text.py": "GREETING = 3\n"})
    repository = agent_repo.repository
    assert repository.fetch_candidate("feature/deep") == commit
    assert repository.fetch_candidate(commit[:12]) == commit
    assert repository.fetch_candidate("refs/tags/v1") == commit
    assert repository.fetch_candidate("v1") != commit  # branches first
    assert repository.fetch_candidate("HEAD") == repository.head()


def test_detached_head_and_linked_worktree(agent_repo: AgentRepo, tmp_path: Path) -> None:
    commit = agent_repo.branch("other", {"instance/text.py": "GREETING = 2\n"})
    agent_repo.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"), commit)
    linked = AgentRepo(tmp_path / "linked")
    assert linked.repository.head() == commit
    assert linked.repository.fetch_candidate("trunk") == agent_repo.git("rev-parse", "trunk")


def test_shallow_clone(agent_repo: AgentRepo, tmp_path: Path) -> None:
    for number in range(3):
        agent_repo.commit({"instance/text.py": f"GREETING = {number}\n"})
    url = f"file://{agent_repo.path}"
    agent_repo.git("clone", "--quiet", "--depth=1", url, str(tmp_path / "shallow"))
    shallow = AgentRepo(tmp_path / "shallow")
    shallow.git("branch", "trunk") if shallow.git("branch", "--list", "trunk") == "" else None
    repository = shallow.repository
    candidate = shallow.branch("next", {"instance/text.py": "GREETING = 9\n"})
    assert repository.fetch_candidate("next") == candidate
    assert repository.git.run("fsck", "--no-dangling") == b""


def test_objects_of_the_checkout_may_be_lost_later(agent_repo: AgentRepo) -> None:
    agent_repo.branch("better", {"instance/text.py": "GREETING = 2\n"})
    commit = agent_repo.repository.fetch_candidate("better")
    shutil.rmtree(agent_repo.path / ".git" / "objects")
    repository = Repository(agent_repo.home)
    assert repository.export(commit, PATHS, agent_repo.home.generations).path.is_dir()
    assert repository.git.run("fsck", "--no-dangling") == b""


def test_large_history_becomes_one_pack(agent_repo: AgentRepo) -> None:
    agent_repo.commit({f"instance/part_{number}.py": f"N = {number}\n" for number in range(200)})
    repository = agent_repo.repository
    assert len(list((repository.path / "objects" / "pack").glob("*.pack"))) == 1
    assert repository.git.run("fsck", "--no-dangling") == b""


def test_nothing_of_a_foreign_checkout_is_executed(agent_repo: AgentRepo, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    sprung = tmp_path / "sprung"
    trap.write_text(f"#!/bin/sh\necho $0 >> {sprung}\ncat\n")
    trap.chmod(0o755)
    hooks = agent_repo.path / ".git" / "hooks"
    shutil.rmtree(hooks, ignore_errors=True)
    hooks.mkdir()
    agent_repo.branch("better", {"instance/text.py": "GREETING = 2\n", ".gitattributes": "* filter=t diff=t merge=t\n"})
    for name in ("post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc", "post-commit"):
        shutil.copy(trap, hooks / name)
    for key in (
        "core.fsmonitor", "core.sshCommand", "core.pager", "pager.rev-parse", "pager.for-each-ref", "core.gitProxy",
        "uploadpack.packObjectsHook", "filter.t.smudge", "filter.t.clean", "diff.t.textconv", "merge.t.driver",
        "remote.origin.uploadpack", "credential.helper", "core.askPass", "alias.rev-parse", "core.editor",
    ):  # fmt: skip
        agent_repo.git("config", key, f"!{trap}" if key.startswith("alias") else str(trap))
    agent_repo.git("config", "remote.origin.url", str(agent_repo.path))
    agent_repo.git("config", "remote.origin.promisor", "true")
    agent_repo.git("config", "extensions.partialClone", "origin")
    agent_repo.git("config", "core.repositoryFormatVersion", "1")
    sprung.unlink(missing_ok=True)
    if os.geteuid() == 0:
        for path in [agent_repo.path, *agent_repo.path.rglob("*")]:
            os.chown(path, 61234, 61234, follow_symlinks=False)
    before = digest(agent_repo.path)
    repository = agent_repo.repository
    commit = repository.fetch_candidate("better")
    repository.export(commit, PATHS, agent_repo.home.generations)
    with pytest.raises(Refused, match="no such branch"):
        repository.fetch_candidate("0123456789012345678901234567890123456789")  # a promisor would be asked for it
    assert not sprung.exists(), sprung.read_text()
    assert digest(agent_repo.path) == before


def test_export_is_complete_read_only_and_agent_paths_only(agent_repo: AgentRepo) -> None:
    old = os.umask(0o077)
    try:
        agent_repo.commit({"tools/naïve \n name": "odd\n"})
        (agent_repo.path / "tools" / "link").symlink_to("../instance/text.py")
        (agent_repo.path / "tools" / "dangling").symlink_to("nowhere")
        commit = agent_repo.commit({})
        repository = agent_repo.repository
        export = repository.export(commit, PATHS, agent_repo.home.generations)
    finally:
        os.umask(old)
    assert export.path == agent_repo.home.generations / commit
    assert sorted(path.name for path in export.path.iterdir()) == sorted(PATHS)
    assert (export.path / "tools" / "link").read_text().startswith("LINE_0")
    assert (export.path / "tools" / "naïve \n name").read_text() == "odd\n"
    for path in [export.path, *export.path.rglob("*")]:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            assert stat.S_IMODE(mode) == 0o755
        elif stat.S_ISREG(mode) and "__pycache__" not in path.parts:
            assert stat.S_IMODE(mode) == (0o555 if path.name == "show" else 0o444)
    assert exports.tree_hash(export.path) == export.tree
    assert list((export.path / "instance" / "__pycache__").glob("text.*.pyc"))


def test_export_of_nested_agent_paths(agent_repo: AgentRepo) -> None:
    commit = agent_repo.commit({"src/agent/core/a.py": "A = 1\n", "src/other.py": "B = 1\n"})
    export = agent_repo.repository.export(
        commit, ("src/agent", "src/agent/core", "absent"), agent_repo.home.generations
    )
    found = {str(path.relative_to(export.path)) for path in export.path.rglob("*") if path.is_file()}
    assert {name for name in found if name.endswith(".py")} == {"src/agent/core/a.py"}


def test_a_damaged_export_is_made_again(agent_repo: AgentRepo) -> None:
    repository = agent_repo.repository
    first = repository.export(repository.head(), PATHS, agent_repo.home.generations)
    victim = first.path / "instance" / "text.py"
    victim.chmod(0o644)
    victim.write_text("changed\n")
    again = repository.export(repository.head(), PATHS, agent_repo.home.generations)
    assert again == first
    assert victim.read_text().startswith("LINE_0")
    (first.path / "instance" / "extra.py").write_text("extra\n")
    assert repository.export(repository.head(), PATHS, agent_repo.home.generations) == first
    assert not (first.path / "instance" / "extra.py").exists()


def test_concurrent_exports_agree(agent_repo: AgentRepo) -> None:
    repository = agent_repo.repository
    commit = repository.head()
    code = (
        "import sys; from pathlib import Path; from orchestrator.home import open_home;"
        "from orchestrator.repository import Repository; h = open_home(Path(sys.argv[1]));"
        f"print(Repository(h).export('{commit}', {PATHS!r}, h.generations).tree)"
    )
    argv = [sys.executable, "-c", code, str(agent_repo.path)]
    others = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    with ThreadPoolExecutor(4) as pool:
        here = set(pool.map(lambda _: repository.export(commit, PATHS, agent_repo.home.generations).tree, range(8)))
    there = {process.communicate()[0].strip() for process in others}
    assert here == there
    assert [path.name for path in agent_repo.home.generations.iterdir()] == [commit]


def test_move_main_is_compare_and_swap(agent_repo: AgentRepo) -> None:
    repository = agent_repo.repository
    old = repository.head()
    new = agent_repo.branch("better", {"instance/text.py": "GREETING = 2\n"})
    repository.fetch_candidate("better")
    repository.move_main(new, old)
    assert repository.head() == new
    with pytest.raises(Failed, match="moved in between"):
        repository.move_main(new, old)
    repository.set_ref("refs/sia/bad/2", new)
    repository.move_main(old, new)
    assert repository.head() == old
    assert repository.resolve("refs/sia/bad/2") == new


def test_stale_locks_of_a_killed_process_do_no_harm(agent_repo: AgentRepo) -> None:
    repository = agent_repo.repository
    old = repository.head()
    new = agent_repo.branch("better", {"instance/text.py": "GREETING = 2\n"})
    for name in ("refs/heads/main.lock", "packed-refs.lock", "HEAD.lock", f"refs/sia/candidates/{new}.lock"):
        (repository.path / name).parent.mkdir(parents=True, exist_ok=True)
        (repository.path / name).touch()
    repository.fetch_candidate("better")
    repository.move_main(new, old)
    assert repository.head() == new
    assert not list(repository.path.rglob("*.lock"))


LOOP = """
import sys, itertools
from pathlib import Path
from orchestrator.home import open_home
from orchestrator.repository import Repository
home = open_home(Path(sys.argv[1]))
repository = Repository(home).ensure()
a, b = sys.argv[2:]
repository.fetch_candidate(a); repository.fetch_candidate(b)
for number in itertools.count():
    head = repository.head()
    repository.move_main(b if head == a else a, head)
    repository.export(head, ("instance",), home.root / f"exports-{number}")
"""


def test_kill_at_any_moment_leaves_old_or_new(agent_repo: AgentRepo) -> None:
    a = agent_repo.git("rev-parse", "HEAD")
    b = agent_repo.branch("better", {"instance/text.py": "GREETING = 2\n"})
    for delay in (0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6):
        argv = [sys.executable, "-c", LOOP, str(agent_repo.path), a, b]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL, process.stderr and process.stderr.read()
        repository = Repository(agent_repo.home).ensure()
        assert repository.head() in (a, b)
        target = b if repository.head() == a else a
        repository.fetch_candidate(target)
        repository.move_main(target, repository.head())
        export = repository.export(target, ("instance",), agent_repo.home.generations)
        assert exports.tree_hash(export.path) == export.tree
    assert repository.git.run("fsck", "--no-dangling") == b""
    assert not list(agent_repo.home.root.glob(".repo-*"))


def test_alternates_with_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIA_HOME", raising=False)
    repo = make_agent_repo(tmp_path / 'a:b "c" \\d')
    assert repo.repository.head() == repo.git("rev-parse", "HEAD")
    assert quoted(Path("/plain")) == "/plain"


def test_git_takes_nothing_from_the_caller(agent_repo: AgentRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.bare")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "nonsense")
    assert agent_repo.repository.head()


@pytest.mark.bad_input
def test_bad_input_no_commit_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repo = AgentRepo(tmp_path / "empty")
    repo.path.mkdir()
    repo.git("init", "--quiet")
    with pytest.raises(ConfigError, match="no commit yet") as caught:
        _ = repo.repository
    show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_sha256_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repo = make_agent_repo(tmp_path / "sha256", "--object-format=sha256")
    with pytest.raises(ConfigError, match="object format sha256") as caught:
        _ = repo.repository
    show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_candidate_does_not_exist(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    agent_repo.branch("better-prompt", {"instance/text.py": "GREETING = 2\n"})
    for name in (
        "better-promt",
        "",
        "-x",
        "--all",
        "a..b",
        "x y",
        "\0",
        "a\nb",
        "0" * 40,
        "proposal/7",
        "trunk:README.md",
    ):
        with pytest.raises(Refused, match="no such") as caught:
            agent_repo.repository.fetch_candidate(name)
        show(capsys, caught.value)
    with pytest.raises(Refused, match="branches: better-prompt"):
        agent_repo.repository.fetch_candidate("better-promt")


@pytest.mark.bad_input
def test_bad_input_candidate_shares_no_history(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    agent_repo.git("checkout", "--quiet", "--orphan", "stranger")
    agent_repo.commit({"instance/text.py": "GREETING = 3\n"})
    agent_repo.git("checkout", "--quiet", "trunk")
    with pytest.raises(Refused, match="shares no history") as caught:
        agent_repo.repository.fetch_candidate("stranger")
    show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_objects_missing_in_a_partial_clone(
    agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]
) -> None:
    _ = agent_repo.repository
    agent_repo.branch("better", {"instance/text.py": "GREETING = 2\n"})
    blob = agent_repo.git("rev-parse", "better:instance/text.py")
    (agent_repo.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(Refused, match="can't be fetched") as caught:
        agent_repo.repository.fetch_candidate("better")
    show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_damaged_own_repository(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    repository = agent_repo.repository
    (repository.path / "refs" / "heads" / "main").write_text("garbage\n")
    with pytest.raises(ConfigError, match="no readable branch") as caught:
        repository.head()
    show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_git_missing_or_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.gitio import binary

    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\necho git version 2.30.2\n")
    fake.chmod(0o755)
    for path, expected in ((str(tmp_path), "too old"), (str(tmp_path / "none"), "not installed")):
        monkeypatch.setenv("PATH", path)
        binary.cache_clear()
        with pytest.raises(ConfigError, match=expected) as caught:
            Git(tmp_path).run("version")
        show(capsys, caught.value)
    monkeypatch.undo()
    binary.cache_clear()


FULL = """
import sys
from pathlib import Path
from orchestrator.environments import agent_environment
from orchestrator.errors import SiaError
from orchestrator.home import Home
from orchestrator.repository import Repository
top = Path(sys.argv[1])
home = Home(top / ".sia", top)
repository = Repository(home)

def fill():
    with open(home.root / "filler", "wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            pass

def attempt(call):
    try:
        call()
    except SiaError as error:
        assert "free some space" in str(error), error
        print(error)
    else:
        raise AssertionError("it wrote to a full disk")

fill()
attempt(repository.ensure)
(home.root / "filler").unlink()
repository.ensure()
fill()
head = repository.head()
attempt(lambda: repository.fetch_candidate("big"))
attempt(lambda: repository.export(head, ["instance"], home.generations))
attempt(lambda: repository.set_ref("refs/sia/x/1", head))
attempt(lambda: agent_environment(home, b"", build=True))
(home.root / "filler").unlink()
assert repository.head() == head
repository.move_main(repository.fetch_candidate("big"), head)
repository.export(head, ["instance"], home.generations)
assert repository.git.run("fsck", "--no-dangling") == b""
"""


@pytest.mark.bad_input
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_bad_input_full_disk(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    agent_repo.commit({"instance/data.txt": "".join(f"{number}\n" for number in range(100_000))})
    agent_repo.git("checkout", "--quiet", "-b", "big")
    (agent_repo.path / "instance" / "noise").write_bytes(os.urandom(600_000))
    agent_repo.commit({})
    agent_repo.git("checkout", "--quiet", "trunk")
    (agent_repo.path / ".sia").mkdir()
    script = 'mount -t tmpfs -o size=3m tmpfs "$1/.sia" && exec "$2" -c "$3" "$1"'
    argv = ["unshare", "-m", "sh", "-c", script, "sh", str(agent_repo.path), sys.executable, FULL]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "mount" in done.stderr:
        pytest.skip("no mounts here")
    assert done.returncode == 0, done.stderr
    with capsys.disabled():
        print(f"\n{done.stdout}", end="")
