"""What the agent's clone holds, and what comes back from it: one commit on the full commit that its base stands for."""

from __future__ import annotations

import subprocess
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator import agent_history, database
from orchestrator.agent_history import MAX_BUNDLE, accept_proposal, bundle
from orchestrator.candidates import prepare
from orchestrator.cli.candidate import list_candidates
from orchestrator.errors import Refused
from orchestrator.gitobjects import Entry, Object, encode_commit, encode_pack, encode_tree

from .conftest import FILES, AgentRepo, show


@dataclass
class Clone:
    """The agent's own clone, as tools/clone makes it inside a sandbox."""

    repo: AgentRepo
    base: str

    def bundle(self, branch: str, *revisions: str) -> bytes:
        """A bundle of a branch."""
        target = self.repo.path.parent / "made.bundle"
        self.repo.git("bundle", "create", "--quiet", str(target), *(revisions or (f"main..{branch}",)))
        return target.read_bytes()


@pytest.fixture
def clone(agent_repo: AgentRepo, tmp_path: Path) -> Clone:
    repository = agent_repo.repository
    base = repository.head()
    file = bundle(repository, base, agent_repo.settings.agent.paths)
    inside = AgentRepo(tmp_path / "inside" / "sia")
    inside.path.mkdir(parents=True)
    inside.git("clone", "--quiet", str(file), ".")
    inside.git("checkout", "--quiet", "-b", "better")
    return Clone(inside, base)


def propose(repo: AgentRepo, content: bytes, branch: str = "better", why: str = "it is better") -> str:
    return accept_proposal(repo.home, branch, why, content, "trial-1")


def test_bundle_holds_agent_paths_only(agent_repo: AgentRepo, tmp_path: Path) -> None:
    agent_repo.commit({"README.md": "changed\n"}, "docs: not for the agent")
    commit = agent_repo.commit({"instance/text.py": "GREETING = 2\n"}, "instance: greet twice")
    file = bundle(agent_repo.repository, commit, agent_repo.settings.agent.paths)
    inside = AgentRepo(tmp_path / "clone")
    inside.path.mkdir()
    inside.git("clone", "--quiet", str(file), ".")
    assert inside.git("branch", "--show-current") == "main"
    assert set(inside.git("ls-files").split()) == {name for name in FILES if not name.startswith(("README", "tests"))}
    assert inside.git("log", "--format=%s").split("\n") == ["instance: greet twice", "first"]
    assert inside.git("log", "-1", "--format=%an %ae") == "SIA sia@localhost"
    assert "hidden" not in inside.git("rev-list", "--objects", "--all")
    assert file == bundle(agent_repo.repository, commit, agent_repo.settings.agent.paths)


def test_bundle_is_bounded_to_the_last_commits(agent_repo: AgentRepo, tmp_path: Path) -> None:
    stream = b"reset refs/heads/trunk\nfrom refs/heads/trunk^0\n\n"  # fast-import: 55 commits with one process
    for number in range(55):
        text = f"GREETING = {number}\n".encode()
        stream += b"commit refs/heads/trunk\ncommitter a <a@example.org> %d +0000\n" % (1_700_000_000 + number)
        stream += b"data <<END\nchange %d\nEND\n" % number
        stream += b"M 100644 inline instance/text.py\ndata %d\n%s\n" % (len(text), text)
    argv = ["git", "fast-import", "--quiet"]
    subprocess.run(argv, cwd=agent_repo.path, input=stream, check=True)
    file = bundle(agent_repo.repository, agent_repo.repository.head(), agent_repo.settings.agent.paths)
    inside = AgentRepo(tmp_path / "clone")
    inside.path.mkdir()
    inside.git("clone", "--quiet", str(file), ".")
    assert inside.git("rev-list", "--count", "HEAD") == "50"
    assert agent_repo.repository.git.run("fsck", "--no-dangling", "--strict") == b""


def test_proposal_becomes_one_commit_on_the_full_base(agent_repo: AgentRepo, clone: Clone) -> None:
    clone.repo.commit({"instance/text.py": "GREETING = 2\n"}, "one")
    tip = clone.repo.commit({"procedures/new.md": "New.\n"}, "two")
    name = propose(agent_repo, clone.bundle("better"), why="greets\x1b[31m better\nSia-Candidate: forged")
    assert name == "proposal/1"
    repository = agent_repo.repository
    commit = repository.fetch_candidate(name)
    assert repository.git.line("rev-list", "--parents", "-n1", commit).split()[1:] == [clone.base]
    assert repository.file(commit, "README.md") == FILES["README.md"].encode()
    assert repository.file(commit, "procedures/new.md") == b"New.\n"
    message = repository.git.line("log", "-1", "--format=%B", commit)
    assert f"Sia-Proposal: {tip}" in message
    assert "\nSia-Candidate:" not in message and "\x1b" not in message
    candidate = prepare(repository, agent_repo.settings, name, repository.head())
    assert candidate.judged == commit and candidate.left_out == ()
    assert repository.git.run("fsck", "--no-dangling", "--strict") == b""
    assert list((agent_repo.home.cache / "quarantine").iterdir()) == []


def test_the_same_proposal_again_is_the_same(agent_repo: AgentRepo, clone: Clone) -> None:
    clone.repo.commit({"instance/text.py": "GREETING = 2\n"})
    content = clone.bundle("better")
    assert [propose(agent_repo, content) for _ in range(2)] == ["proposal/1", "proposal/1"]
    clone.repo.commit({"instance/text.py": "GREETING = 3\n"})
    assert propose(agent_repo, clone.bundle("better")) == "proposal/2"


def test_proposal_based_on_an_older_generation_is_merged(agent_repo: AgentRepo, clone: Clone) -> None:
    clone.repo.commit({"procedures/new.md": "New.\n"})
    repository = agent_repo.repository
    newer = agent_repo.branch("newer", {"instance/text.py": "GREETING = 9\n"})
    repository.move_main(repository.fetch_candidate("newer"), clone.base)
    bundle(repository, newer, agent_repo.settings.agent.paths)
    name = propose(agent_repo, clone.bundle("better"))
    candidate = prepare(repository, agent_repo.settings, name, newer)
    assert repository.file(candidate.judged, "instance/text.py") == b"GREETING = 9\n"
    assert repository.file(candidate.judged, "procedures/new.md") == b"New.\n"


def test_the_next_proposal_of_a_clone_goes_on_from_the_one_before(agent_repo: AgentRepo, clone: Clone) -> None:
    clone.repo.commit({"instance/text.py": "GREETING = 2\n"})
    first = propose(agent_repo, clone.bundle("better"))
    repository = agent_repo.repository
    promoted = prepare(repository, agent_repo.settings, first, clone.base).judged
    repository.move_main(promoted, clone.base)
    clone.repo.commit({"instance/text.py": "GREETING = 3\n"})
    second = prepare(repository, agent_repo.settings, propose(agent_repo, clone.bundle("better")), promoted)
    assert repository.git.line("rev-list", "--parents", "-n1", second.judged).split()[1:] == [promoted]
    assert repository.file(second.judged, "instance/text.py") == b"GREETING = 3\n"


def test_what_lies_outside_the_agent_paths_is_dropped(agent_repo: AgentRepo, clone: Clone) -> None:
    clone.repo.commit({"instance/text.py": "GREETING = 2\n", "tests/hidden.txt": "mine\n", "sia.toml": "[agent]\n"})
    commit = agent_repo.repository.fetch_candidate(propose(agent_repo, clone.bundle("better")))
    assert agent_repo.repository.file(commit, "tests/hidden.txt") == FILES["tests/hidden.txt"].encode()
    assert agent_repo.repository.file(commit, "sia.toml") is None
    with closing(database.connect(agent_repo.home.database)) as store:
        assert store.execute("SELECT left_out, origin FROM proposal").fetchone()[:] == (1, "trial-1")


def test_merges_inside_and_whole_bundles_are_taken(agent_repo: AgentRepo, clone: Clone) -> None:
    clone.repo.commit({"instance/text.py": "GREETING = 2\n"})
    clone.repo.git("checkout", "--quiet", "-b", "side", "main")
    clone.repo.commit({"procedures/side.md": "Side.\n"})
    clone.repo.git("checkout", "--quiet", "better")
    clone.repo.git("merge", "--quiet", "--no-edit", "side")
    assert propose(agent_repo, clone.bundle("better", "--all")) == "proposal/1"


def test_list_shows_proposals_without_terminal_sequences(
    agent_repo: AgentRepo, clone: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clone.repo.commit({"instance/text.py": "GREETING = 2\n"})
    propose(agent_repo, clone.bundle("better"), why="good \x1b]0;title\x07 \u202e change")
    monkeypatch.chdir(agent_repo.path)
    assert list_candidates() == 0
    printed = capsys.readouterr().out
    assert "proposal/1" in printed and "proposed" in printed and "\x1b" not in printed and "\u202e" not in printed
    assert list_candidates(as_json=True) == 0
    assert '"kind": "proposal"' in capsys.readouterr().out


def forged(clone: Clone, tools: list[Entry], *objects: Object, branch: str = "better") -> bytes:
    """A bundle whose `tools/` tree git's porcelain would not make."""
    head = clone.repo.git("rev-parse", "main")
    root = []
    for line in clone.repo.git("ls-tree", "main").split("\n"):
        mode, _, rest = line.split(" ", 2)
        oid, name = rest.split("\t")
        if name != "tools":
            root.append(Entry(int(mode, 8), name, oid))
    inner = encode_tree(tools)
    tree = encode_tree([*root, Entry(0o40000, "tools", inner.oid)])
    commit = encode_commit(tree.oid, [head], "1700000000 +0000", "forged")
    pack = encode_pack({item.oid: item for item in (*objects, inner, tree, commit)})
    return f"# v2 git bundle\n-{head} x\n{commit.oid} refs/heads/{branch}\n\n".encode() + pack


BLOB = Object("blob", b"x\n")


@pytest.mark.bad_input
def test_bad_input_proposal_is_no_bundle(
    agent_repo: AgentRepo, clone: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    clone.repo.commit({"instance/text.py": "GREETING = 2\n"})
    good = clone.bundle("better")
    header, pack = good.split(b"\n\n", 1)
    cases = [
        (b"", "not a git bundle"),
        (b"garbage" * 100, "not a git bundle"),
        (b"# v2 git bundle\n", "header is damaged"),
        (b"# v2 git bundle\nnonsense\n\nPACK", "header is damaged"),
        (b"# v3 git bundle\n@filter=blob:none\n" + good.split(b"\n", 1)[1], "not supported"),
        (b"# v3 git bundle\n@object-format=sha256\n\nPACK", "not supported"),
        (b"# v2 git bundle\n" + b"x" * 100_000, "header is damaged"),
        (header + b"\n\n", "no pack"),
        (good[:-30], "refuses the bundle's objects"),
        (good[:-30] + bytes(30), "refuses the bundle's objects"),
        (header + b"\n\nPACK" + pack[4:8] + b"\xff\xff\xff\xff" + pack[12:], "refuses the bundle's objects"),
        (bytes(MAX_BUNDLE + 1), "more than 16777216"),
    ]
    for content, expected in cases:
        with pytest.raises(Refused, match=expected) as caught:
            propose(agent_repo, content)
        show(capsys, caught.value)
    assert agent_repo.repository.git.line("for-each-ref", "refs/sia/proposals") == ""


@pytest.mark.bad_input
def test_bad_input_proposal_with_forbidden_objects(
    agent_repo: AgentRepo, clone: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    link = Object("blob", b"/etc/passwd")
    missing = "1" * 40
    cases = [
        ([Entry(0o100644, ".git", BLOB.oid)], [BLOB]),
        ([Entry(0o40000, ".Git", encode_tree([Entry(0o100644, "config", BLOB.oid)]).oid)],
         [BLOB, encode_tree([Entry(0o100644, "config", BLOB.oid)])]),
        ([Entry(0o100644, "..", BLOB.oid)], [BLOB]),
        ([Entry(0o100644, "a/../../b", BLOB.oid)], [BLOB]),
        ([Entry(0o120000, "link", link.oid)], [link]),
        ([Entry(0o160000, "module", missing)], []),
        ([Entry(0o100644, "gone", missing)], []),
        ([Entry(0o100644, "same", BLOB.oid), Entry(0o40000, "same", encode_tree([]).oid)], [BLOB, encode_tree([])]),
    ]  # fmt: skip
    for tools, objects in cases:
        with pytest.raises(Refused) as caught:
            propose(agent_repo, forged(clone, tools, *objects))
        show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_proposal_without_a_known_base(
    agent_repo: AgentRepo, clone: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    clone.repo.git("checkout", "--quiet", "--orphan", "rootless")
    clone.repo.commit({"instance/text.py": "GREETING = 2\n"})
    with pytest.raises(Refused, match="not based on a clone") as caught:
        propose(agent_repo, clone.bundle("rootless", "rootless"), branch="rootless")
    show(capsys, caught.value)
    clone.repo.git("checkout", "--quiet", "better")
    clone.repo.commit({"instance/text.py": "GREETING = 2\n"})
    for branch in ("-x", "a..b", "", "x y", "a" * 200, "\x1b[2J"):
        with pytest.raises(Refused, match="no valid name") as caught:
            propose(agent_repo, clone.bundle("better"), branch=branch)
        show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_proposal_that_changes_nothing(
    agent_repo: AgentRepo, clone: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    clone.repo.commit({"notes.txt": "outside\n"})
    with pytest.raises(Refused, match="changes nothing in instance") as caught:
        propose(agent_repo, clone.bundle("better"))
    show(capsys, caught.value)
    clone.repo.git("branch", "second", "main")
    with pytest.raises(Refused, match="holds no branch 'third'") as caught:
        propose(agent_repo, clone.bundle("better", "--all"), branch="third")
    show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_proposal_that_unpacks_to_gigabytes(
    agent_repo: AgentRepo, clone: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    """300 MB of zeros in 300 kB: streamed by git, refused by size, never held in our memory."""
    import resource

    size = 300 << 20
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(300)) + packer.flush()
    argv = ["git", "hash-object", "--stdin"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        for _ in range(300):
            process.stdin.write(bytes(1 << 20))
        process.stdin.close()
        oid = process.stdout.read().decode().strip()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Refused, match="more than 20000 files or 256 MB") as caught:
        propose(agent_repo, _with_large_blob(clone, oid, size, body))
    show(capsys, caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # kB


@pytest.mark.bad_input
def test_bad_input_proposal_that_takes_gigabytes_of_gits_memory(
    agent_repo: AgentRepo, clone: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tree of 600 MB, as it says of itself: git makes room for a tree as a whole."""
    with pytest.raises(Refused, match="objects: fatal: Out of memory") as caught:
        propose(agent_repo, _with_object(forged(clone, []), 2, 600 << 20, zlib.compress(b"")))
    show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_proposal_with_a_tree_of_megabytes(
    agent_repo: AgentRepo, clone: Clone, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [Entry(0o100644, f"{number:0240d}", BLOB.oid) for number in range(19_000)]
    with pytest.raises(Refused, match="list of names of 5092000 bytes, more than 4194304") as caught:
        propose(agent_repo, forged(clone, names, BLOB))
    show(capsys, caught.value)


def test_proposals_are_checked_one_at_a_time(
    agent_repo: AgentRepo, clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.repo.commit({"instance/text.py": "GREETING = 2\n"})
    content = clone.bundle("better")
    monkeypatch.setattr(agent_history, "PATIENCE", 0.05)
    with agent_history._turn("another"), pytest.raises(Refused, match="other proposals are being checked"):
        propose(agent_repo, content)
    assert propose(agent_repo, content) == "proposal/1"


def _with_large_blob(clone: Clone, oid: str, size: int, body: bytes) -> bytes:
    return _with_object(forged(clone, [Entry(0o100644, "zeros", oid)]), 3, size, body)


def _with_object(content: bytes, kind: int, size: int, body: bytes) -> bytes:
    """A bundle with one more object in its pack: 3 = blob, 2 = tree."""
    import hashlib

    header, pack = content.split(b"\n\n", 1)
    head, rest = bytearray(), size >> 4
    byte = (kind << 4) | (size & 15)
    while rest:
        head.append(byte | 0x80)
        byte, rest = rest & 0x7F, rest >> 7
    head.append(byte)
    count = int.from_bytes(pack[8:12], "big") + 1
    whole = pack[:8] + count.to_bytes(4, "big") + bytes(head) + body + pack[12:-20]
    return header + b"\n\n" + whole + hashlib.sha1(whole).digest()
