"""One attack vector each: what makes an ordinary git run code, or read something else, must do nothing to ours.

Each vector first springs its trap with the git that people have (the control), so that the test can fail at all. Then
everything that the supervisor does with a checkout and a candidate is done, and the trap must not have been sprung.
"""

from __future__ import annotations

import hashlib
import re
import resource
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.agent_history import accept_proposal, bundle
from orchestrator.candidates import prepare
from orchestrator.errors import Refused
from orchestrator.gitobjects import Entry, Object, encode_commit, encode_pack, encode_tree

from .conftest import AgentRepo, show

ROOT = Path(__file__).resolve().parents[2]


class Trap:
    """A program that leaves a mark when it is run."""

    def __init__(self, directory: Path) -> None:
        self.program, self.mark = directory / "trap", directory / "sprung"
        self.program.write_text(f"#!/bin/sh\necho sprung >> {self.mark}\ncat >/dev/null 2>&1 </dev/null\nexit 1\n")
        self.program.chmod(0o755)

    def was_sprung(self) -> bool:
        """Whether it ran; forgets it."""
        found = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        return found

    def __str__(self) -> str:
        return str(self.program)


def ordinary(repo: AgentRepo, *words: str) -> None:
    """The control: git as people have it; its exit code does not matter."""
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(repo.path.parent), "LC_ALL": "C"}
    environment |= {f"GIT_{role}_{key}": "a" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    subprocess.run(
        ["git", *words],
        cwd=repo.path,
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def configure(*pairs: tuple[str, str]) -> Callable[[AgentRepo, Trap], None]:
    """A vector that lies in the repository's configuration; `{}` is the trap."""

    def prepare(repo: AgentRepo, trap: Trap) -> None:
        for key, value in pairs:
            repo.git("config", key, value.format(trap))

    return prepare


def hook(name: str) -> Callable[[AgentRepo, Trap], None]:
    def prepare(repo: AgentRepo, trap: Trap) -> None:
        (repo.path / ".git/hooks").mkdir(exist_ok=True)
        (repo.path / ".git/hooks" / name).symlink_to(trap.program)

    return prepare


def included(repo: AgentRepo, trap: Trap) -> None:
    (repo.path / ".git/more").write_text(f"[core]\nfsmonitor = {trap}\n")
    repo.git("config", "include.path", "more")


def of_the_worktree(repo: AgentRepo, trap: Trap) -> None:
    repo.git("config", "extensions.worktreeConfig", "true")
    repo.git("config", "--worktree", "core.fsmonitor", str(trap))


def info_attributes(repo: AgentRepo, trap: Trap) -> None:
    (repo.path / ".git/info").mkdir(exist_ok=True)
    (repo.path / ".git/info/attributes").write_text("* filter=evil\n")
    configure(("filter.evil.smudge", "{}"))(repo, trap)


def promisor(repo: AgentRepo, trap: Trap) -> None:
    configure(
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", "ext::{}"),
        ("protocol.ext.allow", "always"),
    )(repo, trap)


def signed(repo: AgentRepo, trap: Trap) -> None:
    raw = repo.git("cat-file", "commit", "better")
    head, _, message = raw.partition("\n\n")
    signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----"
    done = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin"],
        cwd=repo.path, input=f"{head}\n{signature}\n\n{message}\n".encode(), capture_output=True, check=True,
    )  # fmt: skip
    repo.git("update-ref", "refs/heads/better", done.stdout.decode().strip())
    configure(("gpg.program", "{}"), ("log.showSignature", "true"))(repo, trap)


def embedded(repo: AgentRepo, trap: Trap) -> None:
    """A bare repository that is committed as ordinary files: git takes a directory of that form for one."""
    inner = "tools/inner"
    files = {f"{inner}/HEAD": "ref: refs/heads/main\n", f"{inner}/objects/x": "", f"{inner}/refs/x": ""}
    config = f"[core]\nrepositoryformatversion = 0\nbare = false\nworktree = ..\nfsmonitor = {trap}\n"
    repo.git("checkout", "--quiet", "better")
    repo.commit({**files, f"{inner}/config": config})
    repo.git("checkout", "--quiet", "trunk")


ATTRIBUTES = "* filter=evil diff=evil merge=evil\n"
VECTORS: dict[str, tuple[Callable[[AgentRepo, Trap], None], tuple[str, ...]]] = {
    "fsmonitor": (configure(("core.fsmonitor", "{}")), ("status",)),
    "fsmonitor by include": (included, ("status",)),
    "fsmonitor of the worktree": (of_the_worktree, ("status",)),
    "hook post-checkout": (hook("post-checkout"), ("checkout", "better")),
    "hook reference-transaction": (hook("reference-transaction"), ("update-ref", "refs/heads/x", "better")),
    "hook post-index-change": (hook("post-index-change"), ("checkout", "better")),
    "hooksPath": (configure(("core.hooksPath", "../hooks")), ("checkout", "better")),
    "filter smudge": (configure(("filter.evil.smudge", "{}")), ("checkout", "better")),
    "filter clean": (configure(("filter.evil.clean", "{}")), ("add", "--renormalize", ".")),
    "filter process": (configure(("filter.evil.process", "{}")), ("checkout", "better")),
    "filter by info/attributes": (info_attributes, ("checkout", "better")),
    "textconv": (configure(("diff.evil.textconv", "{}")), ("show", "better")),
    "diff driver": (configure(("diff.evil.command", "{}")), ("diff", "trunk", "better")),
    "external diff": (configure(("diff.external", "{}")), ("diff", "trunk", "better")),
    "merge driver": (configure(("merge.evil.driver", "{}")), ("merge", "better")),
    "sshCommand": (configure(("core.sshCommand", "{}"), ("remote.origin.url", "ssh://h/x")), ("fetch", "origin")),
    "transport ext": (configure(("remote.origin.url", "ext::{}"), ("protocol.ext.allow", "always")), ("fetch",)),
    "upload-pack": (configure(("remote.origin.url", "."), ("remote.origin.uploadpack", "{}")), ("fetch", "origin")),
    "promisor": (promisor, ("cat-file", "-p", "1" * 40)),
    "signature": (signed, ("log", "-1", "better")),
    "alias": (configure(("alias.st", "!{}")), ("st",)),
    "embedded bare repository": (embedded, ("-C", "tools/inner", "status")),
}  # fmt: skip


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path)


@pytest.mark.parametrize("name", VECTORS)
def test_vector(name: str, agent_repo: AgentRepo, trap: Trap) -> None:
    arrange, control = VECTORS[name]
    both = {"instance/text.py": "GREETING = 3\n", ".gitattributes": ATTRIBUTES}
    agent_repo.branch("better", {**both, "instance/new.py": "NEW = 1\n"})
    agent_repo.commit({**both, "instance/text.py": "GREETING = 4\n"})  # so that a merge has something to do
    agent_repo.git("checkout", "--quiet", "--detach")
    agent_repo.git("checkout", "--quiet", "trunk")
    (trap.program.parent / "agent/../hooks").resolve().mkdir()
    (trap.program.parent / "hooks/post-checkout").symlink_to(trap.program)
    arrange(agent_repo, trap)
    if name.startswith("embedded"):
        agent_repo.git("checkout", "--quiet", "better")
    ordinary(agent_repo, *control)
    assert trap.was_sprung(), "the control has no effect: this vector tests nothing"
    _everything_that_we_do(agent_repo)
    assert not trap.was_sprung()


def _everything_that_we_do(repo: AgentRepo) -> None:
    repository, paths = repo.repository, repo.settings.agent.paths
    commit = repository.fetch_candidate("better")
    try:
        prepare(repository, repo.settings, "better", repository.head())
    except Refused:
        pass  # a merge conflict, in one vector
    export = repository.export(commit, paths, repo.home.generations)
    bundle(repository, commit, paths)
    assert (export.path / "instance/new.py").read_text() == "NEW = 1\n"
    with pytest.raises(Refused):
        repository.fetch_candidate("1" * 40)


def test_replacements_and_grafts_do_not_change_what_is_judged(agent_repo: AgentRepo) -> None:
    """refs/replace shows people another content than the commit has."""
    true = agent_repo.branch("better", {"instance/text.py": "GREETING = 'true'\n"})
    other = agent_repo.branch("other", {"instance/text.py": "GREETING = 'shown'\n"})
    agent_repo.git("replace", true, other)
    (agent_repo.path / ".git/info").mkdir(exist_ok=True)
    (agent_repo.path / ".git/info/grafts").write_text(f"{true}\n")
    assert "shown" in agent_repo.git("show", "better:instance/text.py")
    commit = agent_repo.repository.fetch_candidate("better")
    export = agent_repo.repository.export(commit, agent_repo.settings.agent.paths, agent_repo.home.generations)
    assert (commit, (export.path / "instance/text.py").read_text()) == (true, "GREETING = 'true'\n")


def test_alternates_of_an_instance_are_never_read(agent_repo: AgentRepo, tmp_path: Path) -> None:
    """A bundle carries no alternates: objects that only another repository of the host has are missing, not found."""
    secret = AgentRepo(tmp_path / "secret")
    secret.path.mkdir()
    secret.git("init", "--quiet")
    secret.commit({"password": "hunter2\n"})
    blob = secret.git("rev-parse", "HEAD:password")
    head, tools = _clone_head(agent_repo), [Entry(0o100644, "password", blob)]
    with pytest.raises(Refused, match="refuses the bundle's objects"):
        accept_proposal(agent_repo.home, "better", "why", _forged(agent_repo, head, tools), "trial-1")


def test_git_is_run_in_one_place_only() -> None:
    """No module but gitio starts git, so none can run it in a directory that an instance wrote."""
    starts = re.compile(r"""\[\s*["']git["']|which\(["']git["']|\bbinary\(\)""")
    sources = [path for top in ("orchestrator", "sandbox") for path in (ROOT / top).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in sources if starts.search(path.read_text("utf-8"))}
    assert {name for name in found if "/demo/" not in name} == {"orchestrator/gitio.py"}


def _clone_head(repo: AgentRepo) -> str:
    """The tip of the agent's clone; made known by making its bundle."""
    repository = repo.repository
    file = bundle(repository, repository.head(), repo.settings.agent.paths)
    return file.read_bytes().split(b"\n")[1].split(b" ")[0].decode()


def _forged(
    repo: AgentRepo, head: str, tools: list[Entry], *objects: Object, raw: bytes = b"", count: int = 0
) -> bytes:
    """A bundle on `head` whose tools/ is what is given; `raw` are `count` pack entries written by hand."""
    inner = encode_tree(tools)
    tree = encode_tree([Entry(0o40000, "tools", inner.oid)])
    commit = encode_commit(tree.oid, [head], "1700000000 +0000", "forged")
    pack = encode_pack({item.oid: item for item in (*objects, inner, tree, commit)})
    total = int.from_bytes(pack[8:12], "big") + count
    whole = pack[:8] + total.to_bytes(4, "big") + raw + pack[12:-20]
    header = f"# v2 git bundle\n-{head} x\n{commit.oid} refs/heads/better\n\n".encode()
    return header + whole + hashlib.sha1(whole).digest()


BLOB = Object("blob", b"x\n")
MODULES = Object("blob", b'[submodule "a"]\n\tpath = a\n\turl = --upload-pack=touch /tmp/x\n')
NAMES = {
    "a .git file": [Entry(0o100644, ".git", BLOB.oid)],
    ".git for a Windows disk": [Entry(0o100644, "git~1", BLOB.oid)],
    ".git for an Apple disk": [Entry(0o100644, ".g\u200cit", BLOB.oid)],
    ".git with a stream": [Entry(0o100644, ".git::$INDEX_ALLOCATION", BLOB.oid)],
    "a symlinked .gitmodules": [Entry(0o120000, ".gitmodules", BLOB.oid)],
    "a url that is an option": [Entry(0o100644, ".gitmodules", MODULES.oid)],
    "a null object": [Entry(0o100644, "null", "0" * 40)],
    "a strange mode": [Entry(0o100666, "file", BLOB.oid)],
    "an empty name": [Entry(0o100644, "", BLOB.oid)],
    "a backslash": [Entry(0o100644, ".git\\config", BLOB.oid)],
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", NAMES)
def test_bad_input_bundle_with(name: str, agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    head = _clone_head(agent_repo)
    with pytest.raises(Refused) as caught:
        accept_proposal(agent_repo.home, "better", "", _forged(agent_repo, head, NAMES[name], BLOB, MODULES), "trial-1")
    assert agent_repo.repository.git.line("for-each-ref", "refs/sia/proposals") == ""
    show(capsys, caught.value)


def _number(value: int) -> bytes:
    """Seven bits at a time, the lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _delta_bomb(size: int) -> tuple[bytes, bytes]:
    """(pack entries, content's base): a delta of a few kilobytes that copies 64 kB again and again."""
    base = bytes(1 << 16)
    copies = size >> 16
    delta = _number(len(base)) + _number(copies << 16) + b"\x80" * copies  # a copy without numbers is 64 kB from 0
    name = hashlib.sha1(b"blob %d\0" % len(base) + base).digest()
    entry = bytearray([7 << 4 | len(delta) & 15 | 128])
    entry += _number(len(delta) >> 4)
    return bytes(entry) + name + zlib.compress(delta, 9), base


@pytest.mark.bad_input
@pytest.mark.parametrize("gigabytes", [0.3, 16])
def test_bad_input_bundle_with_a_delta_that_unfolds(
    gigabytes: float, agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]
) -> None:
    """0.3 GB fit into git's memory bound and are refused by size; 16 GB make git give up."""
    size = int(gigabytes * (1 << 30)) >> 16 << 16
    raw, base = _delta_bomb(size)
    hashed = hashlib.sha1(b"blob %d\0" % size)
    for _ in range(size >> 16 if gigabytes < 1 else 0):
        hashed.update(bytes(1 << 16))
    tools = [Entry(0o100644, "large", hashed.hexdigest())]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = _forged(agent_repo, _clone_head(agent_repo), tools, Object("blob", base), raw=raw, count=1)
    assert len(content) < 100_000
    with pytest.raises(Refused) as caught:
        accept_proposal(agent_repo.home, "better", "", content, "trial-1")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 << 10  # kB
    show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_bundle_with_a_tree_that_unfolds(agent_repo: AgentRepo, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten entries of the tree below, twelve times: a kilobyte for 10^12 files."""
    levels = [encode_tree([Entry(0o100644, f"f{n}", BLOB.oid) for n in range(10)])]
    for _ in range(12):
        levels.append(encode_tree([Entry(0o40000, f"d{n}", levels[-1].oid) for n in range(10)]))
    tools = [Entry(0o40000, "wide", levels[-1].oid)]
    content = _forged(agent_repo, _clone_head(agent_repo), tools, BLOB, *levels)
    with pytest.raises(Refused, match="more than 20000 files") as caught:
        accept_proposal(agent_repo.home, "better", "", content, "trial-1")
    show(capsys, caught.value)
