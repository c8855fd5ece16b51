"""`sia gc`: what is named, in hand or young stays; the rest goes; evidence only goes when asked for."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import agent_history, cli, database, environments, exchange_garbage, garbage, uses
from orchestrator.candidates import build, commit_lock
from orchestrator.engines import replay
from orchestrator.errors import Failed
from orchestrator.exchanges import ExchangeStore
from orchestrator.garbage import Rules, collect
from orchestrator.home import Home
from orchestrator.journal import Asked, Exchange, Journal
from orchestrator.promotion import ensure_first
from orchestrator.supervisor_lock import supervisor_lock
from orchestrator.verifier_packages import REQUIREMENTS
from sandbox import orphans

from .conftest import AgentRepo, digest

LONG_AGO = time.time() - 90 * 86400
NOW = Rules(keep=1, min_age=0.0)


def aged(path: Path) -> Path:
    """As if made long ago."""
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def campaign(repo: AgentRepo, name: str, state: str, judged: str) -> None:
    with closing(database.connect(repo.home.database)) as connection:
        connection.execute(
            "INSERT INTO campaign (id, created, file, spec, baseline, state) VALUES (?, ?, 'f', '{}', ?, ?)",
            (name, float(name[1:]), judged, state),
        )
        connection.execute(
            "INSERT INTO arm (campaign, name, role, proposed, judged) VALUES (?, 'x', 'candidate', ?, ?)",
            (name, judged, judged),
        )


def made(repo: AgentRepo, name: str) -> tuple[str, Path, Path]:
    """A candidate's commit, its export and its bundle, which no process has in hand."""
    commit = repo.repository.fetch_candidate(name)
    export = repo.repository.export(commit, repo.settings.agent.paths, repo.home.generations)
    return commit, aged(export.path), aged(agent_history.bundle(repo.repository, commit, repo.settings.agent.paths))


@pytest.fixture
def repo(agent_repo: AgentRepo) -> AgentRepo:
    """With a generation, and campaigns: c1 old, c2 interrupted, c3 the newest; c0's branch was never judged."""
    with closing(database.connect(agent_repo.home.database)) as connection:
        ensure_first(agent_repo.home, agent_repo.settings, connection)
    for number, state in enumerate(("none", "done", "interrupted", "done")):
        agent_repo.branch(f"c{number}", {"procedures/more.md": f"{number}\n"})
        if number:
            campaign(agent_repo, f"c{number}", state, agent_repo.git("rev-parse", f"c{number}"))
    return agent_repo


def test_what_nothing_names_goes_and_the_rest_stays(repo: AgentRepo) -> None:
    places = {name: made(repo, name) for name in ("c0", "c1", "c2", "c3")}
    generation = aged(repo.home.generations / repo.repository.head())
    before = set(digest(repo.home.root))
    planned = collect(repo.home, repo.settings, NOW, dry_run=True)
    assert before ^ set(digest(repo.home.root)) <= {"sia.db-shm", "sia.db-wal"}
    assert not uses.busy(commit_lock(repo.home, places["c0"][0]))
    done = collect(repo.home, repo.settings, NOW)
    assert {item.path for item in done.items} == {item.path for item in planned.items}
    assert done.bytes == planned.bytes > 4096 and done.left == ()
    assert {item.path for item in done.items} == {path for name in ("c0", "c1") for path in places[name][1:]}
    assert not [path for name in ("c0", "c1") for path in places[name][1:] if path.exists()]
    assert all(path.exists() for name in ("c2", "c3") for path in places[name][1:]) and generation.is_dir()
    assert collect(repo.home, repo.settings, NOW).items == ()
    assert not list(repo.home.root.rglob(".collected-*"))


def test_what_a_person_may_still_want_stays(repo: AgentRepo) -> None:
    commit, export, _ = made(repo, "c0")
    os.utime(export)  # made a moment ago: `sia env build` for a campaign that is still being written, say
    assert [item.kind for item in collect(repo.home, repo.settings, Rules(keep=1)).items] == ["bundle"]
    assert export.is_dir()
    with closing(database.connect(repo.home.database)) as connection:  # an open promotion names it
        connection.execute(
            "INSERT INTO promotion (kind, candidate, old, old_commit, new_commit, tree, nonce, tries, created)"
            " VALUES ('promotion', 'x', 1, ?, ?, 't', 'n', 3, 0)",
            (commit, commit),
        )
    assert collect(repo.home, repo.settings, Rules(keep=1, min_age=0)).items == ()


def test_what_a_process_has_in_hand_stays(repo: AgentRepo) -> None:
    commit = repo.repository.fetch_candidate("c0")
    settings = repo.settings.model_copy(
        update={"agent": repo.settings.agent.model_copy(update={"build_environments": True})}
    )
    result = build(repo.home, settings, commit)
    aged(result.export), aged(result.bundle), aged(result.environment)
    found = collect(repo.home, settings, NOW)
    assert found.items == () and len(found.left) == 2 and all(text.endswith("in use") for text in found.left)
    assert result.export.is_dir() and result.bundle.exists() and result.environment.is_dir()


def test_who_wants_what_is_being_removed_waits_for_it(tmp_path: Path) -> None:
    lock, order = tmp_path / "locks/one", list[str]()
    lock.parent.mkdir()
    with uses.unused(lock) as alone:
        assert alone and uses.busy(lock)
        waiting = threading.Thread(target=lambda: (uses.use(lock), order.append("used")))
        waiting.start()
        waiting.join(0.1)
        order.append("removed")
    waiting.join(10)
    assert order == ["removed", "used"]
    with uses.unused(lock) as alone:
        assert not alone and lock.exists()  # the new file, which the thread's process holds


def environment(home: Home, name: str, python: Path | None) -> Path:
    path = home.environments / name
    path.mkdir(parents=True)
    if python:
        (path / environments.MARKER).write_text(json.dumps({"python": str(python)}))
    path.with_suffix(".lock").touch()
    return aged(path)


def test_environments_by_what_needs_them(repo: AgentRepo) -> None:
    base = environments.interpreter()
    requirements = (repo.path / "instance/requirements.txt").read_bytes()
    needed = [environment(repo.home, environments.name_of(text, base), base) for text in (requirements, REQUIREMENTS)]
    unneeded = environment(repo.home, "0" * 32, base)
    unfinished = environment(repo.home, "1" * 32, None)
    done = collect(repo.home, repo.settings, NOW)
    assert {item.path for item in done.items} == {unneeded, unfinished}
    assert sorted(path.name for path in repo.home.environments.iterdir()) == sorted(
        name for path in needed for name in (path.name, f"{path.name}.lock")
    )


def test_environments_that_other_repositories_may_use_stay(repo: AgentRepo, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (repo.home.root / "envs").symlink_to(shared)
    other = environment(repo.home, "0" * 32, environments.interpreter())
    done = collect(repo.home, repo.settings, NOW)
    assert done.items == () and other.is_dir() and "is a link" in done.left[0]


@pytest.mark.sandbox
def test_levels_wait_for_the_supervisor(repo: AgentRepo) -> None:
    (repo.home.main / "levels/7/data/upper").mkdir(parents=True)
    with supervisor_lock(repo.home, "supervise"):
        done = collect(repo.home, repo.settings, NOW)
        assert done.items == () and "a supervisor runs" in done.left[0]
    assert [item.kind for item in collect(repo.home, repo.settings, NOW, dry_run=True).items] == ["layer"]
    assert [item.path.name for item in collect(repo.home, repo.settings, NOW).items] == ["7"]
    assert not (repo.home.main / "levels/7").exists()


@pytest.fixture
def store(repo: AgentRepo) -> Iterator[ExchangeStore]:
    """Journals of c1 (old), c2 (interrupted), c3 (kept) and main; all share the system prompt."""
    with closing(ExchangeStore(repo.home.exchanges, repo.home.database)) as store:
        for name in ("c1", "c2", "c3", "main"):
            meta = {"kind": "main"} if name == "main" else {"kind": "trial", "campaign": name}
            journal = Journal.create(store, f"{name}-t", meta)
            for n in (1, 2):
                context = f"<context>{name} {n} {'é' * 3000}</context>"
                asked = Asked(9, "00" * 32, system="shared", schema="xsd", context=context)
                journal.append(Exchange(n, 1.0, "infer", asked, f"<stop/>{name}", 0.1))
            journal.seal()
            files = repo.home.campaigns / name / "trials" / "t"
            files.mkdir(parents=True)
            (files / "stdout.txt").write_text("out")
        yield store


def test_evidence_goes_only_when_asked_for(repo: AgentRepo, store: ExchangeStore) -> None:
    before = {name: list(Journal.open(store, f"{name}-t")) for name in ("c2", "c3", "main")}
    assert collect(repo.home, repo.settings, NOW).items == ()
    rules = Rules(keep=1, min_age=0, evidence=True)
    planned = collect(repo.home, repo.settings, rules, dry_run=True)
    assert [item.kind for item in planned.items] == ["trial files", "texts"] and planned.bytes > 4096
    assert Journal.open(store, "c1-t").verify().collected is None
    store.close()
    done = collect(repo.home, repo.settings, rules)
    assert done == planned and not (repo.home.campaigns / "c1/trials").exists()
    assert (repo.home.campaigns / "c2/trials").is_dir()
    with closing(ExchangeStore(repo.home.exchanges, repo.home.database)) as again:
        gone = Journal.open(again, "c1-t")
        assert gone.verify().problem is None and gone.verify().collected is not None
        with pytest.raises(Failed, match="were removed by `sia gc --evidence`"):
            list(gone)
        assert {name: list(Journal.open(again, f"{name}-t")) for name in before} == before
        assert all(Journal.open(again, f"{name}-t").verify().problem is None for name in before)
    assert len(replay.load(repo.home.root, [])) == 2 * len(before)  # all that can still be replayed
    assert collect(repo.home, repo.settings, rules).items == ()


def test_a_campaign_that_a_generation_rests_on_keeps_its_evidence(repo: AgentRepo, store: ExchangeStore) -> None:
    with closing(database.connect(repo.home.database)) as connection:
        connection.execute("UPDATE generation SET campaign = 'c1'")
    assert collect(repo.home, repo.settings, Rules(keep=1, min_age=0, evidence=True)).items == ()


def test_a_campaign_that_goes_on_while_we_collect_keeps_its_files(
    repo: AgentRepo, store: ExchangeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sia campaign rerun` of a finished one begins, and is interrupted, between our look and our removing."""
    real = garbage._environments

    def meanwhile(home: Home, needed: garbage._Needed) -> set[str]:
        with closing(database.connect(home.database)) as connection:
            connection.execute("UPDATE campaign SET state = 'interrupted' WHERE id = 'c1'")
        return real(home, needed)

    monkeypatch.setattr(garbage, "_environments", meanwhile)
    done = collect(repo.home, repo.settings, Rules(keep=1, min_age=0, evidence=True))
    assert done.items == () and "run again" in done.left[0]
    assert (repo.home.campaigns / "c1/trials/t/stdout.txt").exists()
    assert Journal.open(store, "c1-t").verify().collected is None


def test_texts_stay_while_somebody_may_write(repo: AgentRepo, store: ExchangeStore) -> None:
    with open(repo.home.root / orphans.LOCK, "w") as file:  # as a host of a running campaign holds it
        orphans.fcntl.flock(file, orphans.fcntl.LOCK_SH)
        done = collect(repo.home, repo.settings, Rules(keep=1, min_age=0, evidence=True))
    assert [item.kind for item in done.items] == ["trial files"] and "may write" in done.left[0]
    assert Journal.open(store, "c1-t").verify().problem is None


def test_who_watches_all_the_time_does_not_take_new_texts_for_altered_ones(
    repo: AgentRepo, store: ExchangeStore
) -> None:
    """Numbers of pieces that were removed are given again."""
    with closing(ExchangeStore(repo.home.exchanges, repo.home.database, read_only=True)) as watching:
        list(Journal.open(watching, "c3-t"))
        store.close()
        with closing(database.connect(repo.home.database)) as connection:
            connection.execute("UPDATE campaign SET state = 'done'")
        assert exchange_garbage.collect(repo.home, ["c1", "c2", "c3"], dry_run=False)
        with closing(ExchangeStore(repo.home.exchanges, repo.home.database)) as writing:
            later = Journal.create(writing, "later", {"kind": "trial"})
            for n in range(1, 4):
                asked = Asked(9, "33" * 32, context=f"<context>{n} later</context>" * 50)
                later.append(Exchange(n, 1.0, "infer", asked, f"<stop/>{n}", 0.1))
        assert [one.n for one in Journal.open(watching, "later")] == [1, 2, 3]


def test_every_text_that_a_record_names_is_known() -> None:
    asked = {"size": 1, "sha256": "", "context": "a", "turns": [["user", "b"]], "prefix": "c", "head": "d"}
    record = {"asked": {**asked, "system": "e", "schema": "f", "seed": 1}, "reply": "g"}
    assert sorted(exchange_garbage.named(record)) == list("abcdefg")


def test_the_command_says_what_and_how_much(
    repo: AgentRepo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, export, _ = made(repo, "c0")
    monkeypatch.chdir(repo.path)

    def sia(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            cli.main(["gc", *words])
        assert end.value.code == 0
        return capsys.readouterr().out

    listed = json.loads(sia("--dry-run", "--json"))
    assert listed["bytes"] == sum(item["bytes"] for item in listed["items"]) > 0 and export.is_dir()
    text = sia()
    assert str(export) in text and "removed in all (2)" in text and not export.exists()
    assert "nothing to remove" in sia()


@pytest.mark.bad_input
@pytest.mark.parametrize("words", [("--keep", "-1"), ("--min-age", "-2"), ("--min-age", "nan")])
def test_bad_input_gc(
    repo: AgentRepo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    monkeypatch.chdir(repo.path)
    with pytest.raises(SystemExit) as end:
        cli.main(["gc", *words])
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert "at least 0" in message
    with capsys.disabled():
        print(f"\n  {message.strip()}")


@pytest.mark.bad_input
def test_bad_input_what_disk_and_database_refuse(
    repo: AgentRepo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where nobody thought of it there is a message, and no traceback."""
    made(repo, "c0")
    monkeypatch.chdir(repo.path)

    def said() -> str:
        with pytest.raises(SystemExit) as end:
            cli.main(["gc"])
        assert end.value.code == 1
        return capsys.readouterr().err

    for path in repo.home.uses.iterdir() if repo.home.uses.exists() else ():
        path.unlink()
    repo.home.uses.rmdir() if repo.home.uses.exists() else None
    repo.home.uses.write_text("in the way")
    messages = [said()]

    def locked(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(garbage, "collect", locked)
    messages.append(said())
    assert str(repo.home.uses) in messages[0] and "database is locked" in messages[1]
    for message in messages:
        assert message.startswith("sia: ") and "fix:" in message and "Traceback" not in message
        with capsys.disabled():
            print(f"\n  {message.strip()}")


def test_the_size_of_what_has_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    one = garbage.size_of(tmp_path)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to("/usr")
    assert garbage.size_of(tmp_path) - one < 50_000
