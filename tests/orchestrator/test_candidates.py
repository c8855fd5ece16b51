"""Merge first, judge the merge, agent paths only: which commit J is, and what is refused before anything is spent."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from orchestrator import exports
from orchestrator.candidates import Candidate, build, prepare
from orchestrator.cli import main
from orchestrator.config import Agent, Settings
from orchestrator.errors import Refused
from orchestrator.gitobjects import Entry, Object, encode_commit, encode_tree, object_id
from orchestrator.repository import Repository

from .conftest import FILES, AgentRepo, digest, show


def prepared(repo: AgentRepo, name: str) -> Candidate:
    """The candidate against the current generation."""
    repository = repo.repository
    return prepare(repository, repo.settings, name, repository.head())


def parents(repo: AgentRepo, commit: str) -> list[str]:
    return repo.repository.git.line("rev-list", "--parents", "--max-count=1", commit).split()[1:]


def content(repo: AgentRepo, commit: str, path: str) -> str | None:
    found = repo.repository.file(commit, path)
    return None if found is None else found.decode()


def advance(repo: AgentRepo, files: dict[str, str | None], name: str = "generation") -> str:
    """A new generation: a branch is promoted."""
    old = repo.repository.head()
    repo.git("fetch", "--quiet", str(repo.repository.path), "main")
    repo.branch(name, files, old)
    new = prepared(repo, name).judged
    repo.repository.move_main(new, old)
    return new


LINES = FILES["instance/text.py"]
FIRST = LINES.replace("LINE_0 = 0", "LINE_0 = 100")
LAST = LINES.replace("LINE_39 = 39", "LINE_39 = 139")


def test_descendant_that_changes_agent_paths_only_is_judged_itself(agent_repo: AgentRepo) -> None:
    commit = agent_repo.branch("better", {"instance/text.py": FIRST})
    candidate = prepared(agent_repo, "better")
    assert (candidate.proposed, candidate.judged) == (commit, commit)
    assert candidate.left_out == ()


def test_descendant_with_other_changes_is_judged_on_its_agent_paths(agent_repo: AgentRepo) -> None:
    _ = agent_repo.repository
    commit = agent_repo.branch("mixed", {"instance/text.py": FIRST, "README.md": "x\n", "tests/hidden.txt": None})
    candidate = prepared(agent_repo, "mixed")
    assert candidate.left_out == ("README.md", "tests/hidden.txt")
    assert parents(agent_repo, candidate.judged) == [agent_repo.repository.head()]
    message = agent_repo.repository.git.line("log", "-1", "--format=%B", candidate.judged)
    assert f"Sia-Candidate: {commit}" in message
    assert content(agent_repo, candidate.judged, "instance/text.py") == FIRST
    assert content(agent_repo, candidate.judged, "tests/hidden.txt") == FILES["tests/hidden.txt"]
    assert content(agent_repo, candidate.judged, "README.md") == FILES["README.md"]


def test_ordinary_merge_has_two_parents(agent_repo: AgentRepo) -> None:
    _ = agent_repo.repository
    commit = agent_repo.branch("better", {"instance/text.py": FIRST})
    generation = advance(agent_repo, {"instance/text.py": LAST})
    candidate = prepared(agent_repo, "better")
    assert parents(agent_repo, candidate.judged) == [generation, commit]
    merged = content(agent_repo, candidate.judged, "instance/text.py")
    assert merged == FIRST.replace("LINE_39 = 39", "LINE_39 = 139")


def test_merge_without_the_other_paths_has_one_parent(agent_repo: AgentRepo) -> None:
    _ = agent_repo.repository
    agent_repo.branch("mixed", {"instance/text.py": FIRST, "README.md": "x\n"})
    generation = advance(agent_repo, {"instance/text.py": LAST})
    candidate = prepared(agent_repo, "mixed")
    assert parents(agent_repo, candidate.judged) == [generation]
    assert candidate.left_out == ("README.md",)
    assert content(agent_repo, candidate.judged, "README.md") == FILES["README.md"]


def test_a_conflict_outside_the_agent_paths_does_not_matter(agent_repo: AgentRepo) -> None:
    agent_repo.git("checkout", "--quiet", "-b", "old")
    agent_repo.git("checkout", "--quiet", "trunk")
    agent_repo.commit({"README.md": "one\n"})
    _ = agent_repo.repository
    agent_repo.branch("other", {"README.md": "two\n", "instance/text.py": FIRST}, "old")
    candidate = prepared(agent_repo, "other")
    assert candidate.left_out == ("README.md",)
    assert content(agent_repo, candidate.judged, "README.md") == "one\n"


def test_a_change_that_the_generation_has_too_is_not_left_out(agent_repo: AgentRepo) -> None:
    agent_repo.git("branch", "old")
    agent_repo.commit({"README.md": "same\n"})
    _ = agent_repo.repository
    commit = agent_repo.branch("same", {"README.md": "same\n", "instance/text.py": FIRST}, "old")
    candidate = prepared(agent_repo, "same")
    assert candidate.left_out == ()
    assert parents(agent_repo, candidate.judged) == [agent_repo.repository.head(), commit]


def crossed(repo: AgentRepo, mine: dict[str, str | None], theirs: dict[str, str | None]) -> None:
    """A generation and a branch `crossed` that have merged each other's first commit: two merge bases."""
    repo.branch("left", mine)
    repo.branch("right", theirs)
    repo.git("checkout", "--quiet", "trunk")
    repo.git("merge", "--quiet", "--ff-only", "left")
    repo.git("merge", "--quiet", "--no-edit", "right")
    repo.git("checkout", "--quiet", "-b", "crossed", "right")
    repo.git("merge", "--quiet", "--no-edit", "left")
    repo.commit({"procedures/system.md": "Work well.\n"})
    repo.git("checkout", "--quiet", "trunk")


def test_several_merge_bases_with_the_same_agent_paths_are_as_good_as_one(agent_repo: AgentRepo) -> None:
    crossed(agent_repo, {"README.md": "left\n"}, {"docs.md": "right\n"})
    candidate = prepared(agent_repo, "crossed")
    assert content(agent_repo, candidate.judged, "procedures/system.md") == "Work well.\n"
    assert candidate.left_out == ()


@pytest.mark.bad_input
def test_bad_input_several_merge_bases(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    crossed(agent_repo, {"instance/text.py": FIRST}, {"instance/text.py": LAST})
    with pytest.raises(Refused, match="2 merge bases") as refused:
        prepared(agent_repo, "crossed")
    show(capsys, refused.value)
    agent_repo.git("checkout", "--quiet", "crossed")
    agent_repo.git("merge", "--quiet", "--no-edit", "trunk")  # what the message says
    agent_repo.git("checkout", "--quiet", "trunk")
    assert content(agent_repo, prepared(agent_repo, "crossed").judged, "procedures/system.md") == "Work well.\n"


def test_the_same_input_gives_the_same_judged_commit(agent_repo: AgentRepo) -> None:
    _ = agent_repo.repository
    agent_repo.branch("mixed", {"instance/text.py": FIRST, "README.md": "x\n"})
    advance(agent_repo, {"instance/text.py": LAST})
    first = prepared(agent_repo, "mixed")
    time.sleep(1.1)
    assert prepared(agent_repo, "mixed") == first


def test_renames_and_deletions_merge(agent_repo: AgentRepo) -> None:
    _ = agent_repo.repository
    agent_repo.branch("renamed", {"instance/text.py": None, "instance/words.py": LINES, "procedures/system.md": None})
    generation = advance(agent_repo, {"instance/text.py": LAST})
    candidate = prepared(agent_repo, "renamed")
    assert content(agent_repo, candidate.judged, "instance/words.py") == LAST
    assert content(agent_repo, candidate.judged, "instance/text.py") is None
    assert content(agent_repo, candidate.judged, "procedures/system.md") is None
    assert parents(agent_repo, candidate.judged)[0] == generation


def test_a_repaired_branch_merges_again_after_a_rollback(agent_repo: AgentRepo) -> None:
    _ = agent_repo.repository
    old = agent_repo.repository.head()
    agent_repo.branch("risky", {"instance/text.py": FIRST, "tools/new": "bad\n"})
    bad = prepared(agent_repo, "risky").judged
    agent_repo.repository.move_main(bad, old)
    agent_repo.repository.set_ref("refs/sia/bad/2", bad)
    agent_repo.repository.move_main(old, bad)  # rolled back: the ref, not a revert
    agent_repo.git("checkout", "--quiet", "risky")
    agent_repo.commit({"tools/new": "good\n"})
    agent_repo.git("checkout", "--quiet", "trunk")
    candidate = prepared(agent_repo, "risky")
    assert content(agent_repo, candidate.judged, "instance/text.py") == FIRST
    assert content(agent_repo, candidate.judged, "tools/new") == "good\n"


def test_a_branch_goes_on_after_its_agent_paths_were_promoted(agent_repo: AgentRepo) -> None:
    old = agent_repo.repository.head()
    agent_repo.branch("mixed", {"instance/text.py": FIRST, "README.md": "x\n"})
    first = prepared(agent_repo, "mixed")
    agent_repo.repository.move_main(first.judged, old)
    with pytest.raises(Refused, match="already part of the generation"):
        prepared(agent_repo, "mixed")
    advance(agent_repo, {"instance/text.py": FIRST.replace("LINE_39 = 39", "LINE_39 = 139")})
    agent_repo.git("checkout", "--quiet", "mixed")
    agent_repo.commit({"instance/text.py": LINES.replace("LINE_0 = 0", "LINE_0 = 200")})
    agent_repo.git("checkout", "--quiet", "trunk")
    candidate = prepared(agent_repo, "mixed")
    merged = content(agent_repo, candidate.judged, "instance/text.py")
    assert merged == LINES.replace("LINE_0 = 0", "LINE_0 = 200").replace("LINE_39 = 39", "LINE_39 = 139")
    assert candidate.left_out == ("README.md",)


def test_nested_agent_paths(agent_repo: AgentRepo) -> None:
    agent_repo.settings = Settings(agent=Agent(paths=("src/agent", "action_schema.xsd")))
    agent_repo.commit({"src/agent/a.py": LINES, "src/host.py": "H = 1\n"})
    _ = agent_repo.repository
    agent_repo.branch(
        "better", {"src/agent/a.py": FIRST, "src/host.py": "H = 2\n", "src/agent/b.py": "B = 1\n"}, "trunk"
    )
    advance(agent_repo, {"src/agent/a.py": LAST})
    candidate = prepared(agent_repo, "better")
    assert candidate.left_out == ("src/host.py",)
    assert content(agent_repo, candidate.judged, "src/host.py") == "H = 1\n"
    assert content(agent_repo, candidate.judged, "src/agent/b.py") == "B = 1\n"
    assert content(agent_repo, candidate.judged, "src/agent/a.py") == FIRST.replace("LINE_39 = 39", "LINE_39 = 139")


def test_attributes_of_a_candidate_do_not_choose_how_it_is_merged(agent_repo: AgentRepo) -> None:
    _ = agent_repo.repository
    change = LINES.replace("LINE_5 = 5", "LINE_5 = 'candidate'")
    agent_repo.branch("union", {"instance/text.py": change, "instance/.gitattributes": "* merge=union\n"})
    advance(agent_repo, {"instance/text.py": LINES.replace("LINE_5 = 5", "LINE_5 = 'generation'")})
    with pytest.raises(Refused, match="conflicts"):
        prepared(agent_repo, "union")


def test_prepare_leaves_nothing_behind_and_the_checkout_alone(agent_repo: AgentRepo) -> None:
    _ = agent_repo.repository
    agent_repo.branch("mixed", {"instance/text.py": FIRST, "README.md": "x\n"})
    advance(agent_repo, {"instance/text.py": LAST})
    before = digest(agent_repo.path)
    prepared(agent_repo, "mixed")
    assert digest(agent_repo.path) == before
    assert list((agent_repo.home.cache / "quarantine").iterdir()) == []
    assert agent_repo.repository.git.run("fsck", "--no-dangling", "--strict") == b""


def test_prepare_is_quick(agent_repo: AgentRepo) -> None:
    _ = agent_repo.repository
    agent_repo.branch("mixed", {"instance/text.py": FIRST, "README.md": "x\n"})
    advance(agent_repo, {"instance/text.py": LAST})
    prepared(agent_repo, "mixed")
    bare = min(
        _seconds(lambda: subprocess.run(["git", "--version"], check=True, capture_output=True)) for _ in range(5)
    )
    taken = min(_seconds(lambda: prepared(agent_repo, "mixed")) for _ in range(5))
    assert taken < 100 * bare, f"{taken * 1e3:.0f} ms, git --version {bare * 1e3:.1f} ms"


def _seconds(call: object) -> float:
    start = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - start


def test_build_has_everything_and_is_reused(agent_repo: AgentRepo) -> None:
    agent_repo.settings = Settings(agent=Agent(build_environments=True))
    commit = agent_repo.repository.head()
    made = build(agent_repo.home, agent_repo.settings, commit)
    assert made.export == agent_repo.home.generations / commit
    assert exports.tree_hash(made.export) == made.tree
    assert made.schema == b"<schema/>\n"
    assert made.command == ("python", "-P", "-m", "instance")
    assert made.bundle.read_bytes().startswith(b"# v2 git bundle\n")
    argv = [made.environment / "bin" / "python", "-P", "-m", "instance"]
    ran = subprocess.run(argv, env={"PYTHONPATH": str(made.export)}, check=True, capture_output=True, text=True)
    assert ran.stdout == "hello\n"
    assert build(agent_repo.home, agent_repo.settings, commit) == made


@pytest.mark.bad_input
def test_bad_input_conflict_with_the_generation(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    _ = agent_repo.repository
    agent_repo.branch("clash", {"instance/text.py": LINES.replace("LINE_5 = 5", "LINE_5 = 'candidate'")})
    advance(agent_repo, {"instance/text.py": LINES.replace("LINE_5 = 5", "LINE_5 = 'generation'")})
    with pytest.raises(Refused, match=r"conflicts with the current generation in instance/text\.py") as caught:
        prepared(agent_repo, "clash")
    show(capsys, caught.value)


def test_a_conflicting_name_does_nothing_to_the_terminal(
    agent_repo: AgentRepo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _ = agent_repo.repository
    name = "instance/\x1b]52;c;cHduZWQ=\x07\u202egood\n  fix: run this.py"
    agent_repo.branch("clash", {name: LINES.replace("LINE_5 = 5", "LINE_5 = 'x'"), "instance/text.py": None})
    advance(agent_repo, {"instance/text.py": LINES.replace("LINE_5 = 5", "LINE_5 = 'y'")})
    monkeypatch.chdir(agent_repo.path)
    with pytest.raises(SystemExit) as caught:
        main(["env", "build", "clash"])
    said, refused = capsys.readouterr().err, "conflicts with the current generation"
    assert caught.value.code == 78 and refused in said and "good fix: run this.py" in said
    assert not {"\x1b", "\x07", "\u202e"} & set(said) and said.count("\n") == 2


@pytest.mark.bad_input
def test_bad_input_changes_nothing_in_the_agent_paths(
    agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]
) -> None:
    _ = agent_repo.repository
    agent_repo.branch("docs", {"README.md": "x\n"})
    agent_repo.branch("same", {"instance/text.py": FIRST})
    for name, expected in (("docs", "changes nothing in the agent paths"), ("trunk", "already part of the generation")):
        with pytest.raises(Refused, match=expected) as caught:
            prepared(agent_repo, name)
        show(capsys, caught.value)
    advance(agent_repo, {"instance/text.py": FIRST})
    with pytest.raises(Refused, match="that the generation does not have") as caught:
        prepared(agent_repo, "same")
    show(capsys, caught.value)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "target",
    [
        "/etc/passwd",
        "../../README.md",
        "../procedures/../../x",
        "up/../../x",
        "loop",
        "./././../..",
        "../tools/far/../..",
    ],
)
def test_bad_input_symlink_out_of_the_tree(
    agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    _ = agent_repo.repository
    agent_repo.git("checkout", "--quiet", "-b", "links")
    (agent_repo.path / "instance" / "up").symlink_to("..")
    (agent_repo.path / "tools" / "far").symlink_to("../procedures")
    (agent_repo.path / "instance" / "loop").symlink_to(target)
    agent_repo.commit({})
    agent_repo.git("checkout", "--quiet", "trunk")
    with pytest.raises(Refused, match="symlink out of the tree") as caught:
        prepared(agent_repo, "links")
    show(capsys, caught.value)


def test_symlinks_inside_the_tree_are_allowed(agent_repo: AgentRepo) -> None:
    _ = agent_repo.repository
    agent_repo.git("checkout", "--quiet", "-b", "links")
    for name, target in (("a", "../procedures/system.md"), ("b", "../tools"), ("c", "b/../instance/a"), ("d", "gone")):
        (agent_repo.path / "instance" / name).symlink_to(target)
    agent_repo.commit({})
    agent_repo.git("checkout", "--quiet", "trunk")
    export = agent_repo.repository.export(
        prepared(agent_repo, "links").judged, agent_repo.settings.agent.paths, agent_repo.home.generations
    )
    assert (export.path / "instance" / "c").read_text() == "Work.\n"


@pytest.mark.bad_input
def test_bad_input_submodule(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    _ = agent_repo.repository
    agent_repo.git("checkout", "--quiet", "-b", "sub")
    head = agent_repo.git("rev-parse", "HEAD")
    agent_repo.git("update-index", "--add", "--cacheinfo", f"160000,{head},tools/library")
    agent_repo.git("commit", "--quiet", "-m", "a submodule")
    agent_repo.git("checkout", "--quiet", "trunk")
    with pytest.raises(Refused, match="is a submodule") as caught:
        prepared(agent_repo, "sub")
    show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_compiled_python(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    _ = agent_repo.repository
    agent_repo.branch("compiled", {"instance/__pycache__/text.cpython-311.pyc": "x"})
    with pytest.raises(Refused, match="compiled Python") as caught:
        prepared(agent_repo, "compiled")
    show(capsys, caught.value)


def raw_branch(repo: AgentRepo, name: str, objects: list[Object], tools_tree: str) -> None:
    """A branch whose `tools/` is a tree that git's porcelain would not make."""
    repository = repo.repository
    for item in objects:
        path = repo.path / ".git" / "objects"
        argv = ["git", f"--git-dir={repo.path}/.git", "hash-object", "-w", "--literally", "-t", item.kind, "--stdin"]
        done = subprocess.run(argv, input=item.content, check=True, capture_output=True)
        assert done.stdout.decode().strip() == item.oid and path
    with repository.git.objects() as reader:
        head = reader.commit(repository.head())
        root = [entry for entry in reader.tree(head.tree) if entry.name != "tools"]
    tree = encode_tree([*root, Entry(0o40000, "tools", tools_tree)])
    commit = encode_commit(tree.oid, [repository.head()], head.time, "raw")
    for item in (tree, commit):
        argv = ["git", f"--git-dir={repo.path}/.git", "hash-object", "-w", "--literally", "-t", item.kind, "--stdin"]
        subprocess.run(argv, input=item.content, check=True, capture_output=True)
    repo.git("update-ref", f"refs/heads/{name}", commit.oid)


@pytest.mark.bad_input
def test_bad_input_names_that_mean_something_else(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    blob = Object("blob", b"x\n")
    for number, (mode, name) in enumerate(
        [
            (0o100644, ".."),
            (0o100644, ".GIT"),
            (0o100644, "a/b"),
            (0o100644, "."),
            (0o100664, "odd"),
            (0o100644, "n" * 300),
        ]
    ):
        tree = encode_tree([Entry(mode, name, blob.oid)])
        raw_branch(agent_repo, f"raw-{number}", [blob, tree], tree.oid)
        with pytest.raises(Refused) as caught:
            prepared(agent_repo, f"raw-{number}")
        show(capsys, caught.value)
    assert not Path(agent_repo.home.generations / "..").joinpath("x").exists()


@pytest.mark.bad_input
def test_bad_input_a_tree_that_unfolds_without_end(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    blob = Object("blob", b"x\n")
    tree = encode_tree([Entry(0o100644, f"f{number}", blob.oid) for number in range(10)])
    objects = [blob, tree]
    for _ in range(12):  # 10^13 files in a few kilobytes
        tree = encode_tree([Entry(0o40000, f"d{number}", tree.oid) for number in range(10)])
        objects.append(tree)
    raw_branch(agent_repo, "bomb", objects, tree.oid)
    start = time.monotonic()
    with pytest.raises(Refused, match="more than 20000 files") as caught:
        prepared(agent_repo, "bomb")
    assert time.monotonic() - start < 20
    show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_changed_requirements_need_consent(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    _ = agent_repo.repository
    pinned = f"iniconfig==2.3.0 --hash=sha256:{'0' * 64}\n"
    agent_repo.branch("needy", {"instance/requirements.txt": pinned})
    agent_repo.branch("url", {"instance/requirements.txt": "x @ https://example.invalid/x.whl\n"})
    candidate = prepared(agent_repo, "needy")
    with pytest.raises(
        Refused, match=r"needs a Python environment that has not been built \(iniconfig 2\.3\.0\)"
    ) as caught:
        build(agent_repo.home, agent_repo.settings, candidate.judged)
    show(capsys, caught.value)
    with pytest.raises(Refused, match="URLs are not allowed") as caught:
        build(agent_repo.home, agent_repo.settings, prepared(agent_repo, "url").judged)
    show(capsys, caught.value)


def test_proposal_names_are_looked_up_in_our_own_repository(agent_repo: AgentRepo) -> None:
    repository: Repository = agent_repo.repository
    commit = agent_repo.branch("proposal/1", {"instance/text.py": FIRST})
    with pytest.raises(Refused, match="no such proposal"):
        repository.fetch_candidate("proposal/1")
    repository.fetch_candidate(commit)
    repository.set_ref("refs/sia/proposals/1", commit)
    assert repository.fetch_candidate("proposal/1") == commit
    assert object_id("blob", b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
