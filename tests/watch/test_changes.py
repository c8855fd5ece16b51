"""What an instance changed, read while it writes: nothing is followed, nothing is opened, everything is capped."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import database
from orchestrator.errors import UsageError
from orchestrator.gitio import Git, GitError
from orchestrator.home import Home
from orchestrator.kept_changes import NAME, ChangeList
from orchestrator.watch import changes
from orchestrator.watch.feed import Feed
from orchestrator.watch.generations_feed import GenerationsFeed
from orchestrator.watch.values import Instance
from sandbox.diff import Change
from tests.watch.reading_kit import make_home, run_row
from tests.watch.sample import Sample


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "repo")


@pytest.fixture
def upper(home: Home) -> Path:
    """The upper of a running trial's workdir, over two starting files."""
    made = home.campaigns / "c1" / "trials" / "c1t1" / "layers" / "0" / "upper"
    made.mkdir(parents=True)
    lower = home.campaigns / "c1" / "tasks" / f"t-{'k' * 16}" / "files" / "0"
    (lower / "there").mkdir(parents=True)
    (lower / "kept.txt").write_text("old", encoding="utf-8")
    (lower / "gone.txt").write_text("old", encoding="utf-8")
    task = home.checkout / "tasks" / "t"
    task.mkdir(parents=True)
    for name, text in (("instruction.md", "Do it.\n"), ("task.toml", '[environment]\nworkdir = "/work"\n')):
        (task / name).write_text(text, encoding="utf-8")
    (task / "environment").mkdir()
    (task / "tests").mkdir()
    (task / "tests" / "test.sh").write_text("exit 0\n", encoding="utf-8")
    with closing(database.connect(home.database)) as connection:
        connection.execute(
            "INSERT INTO campaign (id, created, file, spec, baseline, state) VALUES ('c1', 1, 'f', '{}', 'b', 'done')"
        )
        connection.execute(
            "INSERT INTO campaign_task (campaign, position, name, path, key, split) VALUES ('c1', 0, 't', ?, ?, 'x')",
            (str(task), "k" * 64),
        )
    return made


def running(home: Home) -> Instance:
    run_row(home, "c1t1", campaign="c1", task="t", directory=str(home.campaigns / "c1" / "trials" / "c1t1"))
    with Feed(home) as feed:
        (found,) = feed.poll().instances
    return found


def seen(home: Home) -> dict[str, str]:
    return {one.path: one.kind for one in changes.of_instance(home, running(home)).rows}


def test_changes_of_a_running_trial(home: Home, upper: Path) -> None:
    (upper / "kept.txt").write_text("new", encoding="utf-8")
    (upper / "there").mkdir()
    (upper / "there" / "added.txt").write_text("12345", encoding="utf-8")
    (upper / "dir").mkdir()
    assert seen(home) == {
        "/work/kept.txt": "modified",
        "/work/there/added.txt": "added",
        "/work/dir": "added",
    }
    found = changes.of_instance(home, running(home))
    assert (found.live, found.cut, found.total_bytes) == (True, False, 8)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a whiteout")
def test_a_whiteout_is_a_deletion(home: Home, upper: Path) -> None:
    os.mknod(upper / "gone.txt", stat.S_IFCHR, 0)
    assert seen(home) == {"/work/gone.txt": "deleted"}


def test_nothing_is_followed_or_opened(home: Home, upper: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("x", encoding="utf-8")
    (upper / "link").symlink_to(secret)
    os.mkfifo(upper / "fifo")  # opening it would wait for ever
    (upper / "odd\x1b[2J\udcff").write_bytes(b"")
    (upper / "closed").mkdir(mode=0)
    found = seen(home)
    assert set(found) == {"/work/link", "/work/fifo", "/work/odd\x1b[2J\udcff", "/work/closed"}
    assert stat.S_IMODE((upper / "closed").stat().st_mode) == 0  # and it is as it was


def test_deep_and_many_are_cut(home: Home, upper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = upper
    for _ in range(changes.MAX_DEPTH + 5):
        place = place / "d"
        place.mkdir()
    found = changes.of_instance(home, running(home))
    assert found.cut and len(found.rows) <= changes.MAX_DEPTH + 1
    monkeypatch.setattr(changes, "LISTED", 5)
    assert len(changes.of_instance(home, running(home)).rows) == 5
    monkeypatch.setattr(changes, "SECONDS", -1.0)
    assert changes.of_instance(home, running(home)).cut


def test_layers_in_memory_are_found_through_their_link(home: Home, upper: Path, tmp_path: Path) -> None:
    (upper / "a").write_text("x", encoding="utf-8")
    layers = upper.parent.parent
    layers.rename(tmp_path / "room")
    layers.symlink_to(tmp_path / "room")
    assert seen(home) == {"/work/a": "added"}


def test_an_instance_whose_layers_are_gone(home: Home, upper: Path, tmp_path: Path) -> None:
    upper.parent.parent.rename(tmp_path / "room")
    found = changes.of_instance(home, running(home))
    assert not found.rows and "can't be read" in found.note


def test_the_list_of_an_ended_trial(home: Home) -> None:
    place = home.campaigns / "c1" / "trials" / "c1t1"
    place.mkdir(parents=True)
    kept = ChangeList(place)
    kept.add("/app", Change("b", "added", False, 7))
    kept.add("/app", Change("a\udcff", "deleted", True, 0))
    kept.close()
    found = changes.of_trial(home, "c1", "c1t1")
    assert [(one.path, one.kind, one.directory, one.size) for one in found.rows] == [
        ("/app/a\udcff", "deleted", True, 0),
        ("/app/b", "added", False, 7),
    ]
    assert (found.live, found.cut, found.total_bytes) == (False, False, 7)
    with (place / NAME).open("a", encoding="ascii") as file:
        file.write('{"more": true}\n{"path": "/x", "ki')  # and a torn end
    assert changes.of_trial(home, "c1", "c1t1").cut
    assert changes.of_trial(home, "c1", "other").note


@pytest.mark.bad_input
def test_bad_input_watch_changes_of_an_unknown_trial(home: Home) -> None:
    for name in ("", "nope"):
        with pytest.raises(UsageError) as raised:
            changes.look(home, name)
        print(raised.value.render())


def test_main_is_read_from_its_level(shown: Sample) -> None:
    with shown.clock(), Feed(shown.home) as feed:
        main = feed.poll().instance(shown.main)
        assert main is not None
        found = changes.look(shown.home, shown.main, main)
        assert found.live and not found.cut
        assert changes.look(shown.home, shown.hostile, replace(main, said="verifying")).live is False


# -- generations ----------------------------------------------------------------------------------------------------


def test_what_a_promotion_changed(shown: Sample) -> None:
    with shown.clock(), closing(GenerationsFeed(shown.home)) as feed:
        now = feed.poll()
        assert [one.number for one in now.generations] == [3, 2, 1]
        assert now.standing is not None and now.standing.generation.number == 2
        assert [one.outcome for one in now.promotions] == ["rolled_back", "healthy"]
        change = feed.change(2)
        assert change is not None
        assert [(one.path, one.added, one.removed) for one in change.files] == [("instance/__main__.py", 1, 1)]
        assert "+LIMIT = 5000  # characters of each output that are shown" in change.lines
        assert feed.change(2) is change and feed.change(1) is None
        back = feed.change(2, against=3)
        assert back is not None and back.new == change.new
        assert feed.poll().serial == now.serial


def test_a_diff_of_anything_is_capped_and_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.watch import generations_feed

    git = Git(tmp_path / "repo.git", durable=False)
    git.run("init", "--bare", "--quiet", "--template=")
    blob = (
        git.run("hash-object", "-w", "--stdin", data="\x1b[2J\u202e".encode() + b"x" * 5000 + b"\ny\n" * 3000)
        .decode()
        .strip()
    )
    name = "evil\x1b[31m.py"
    new = git.run("mktree", "-z", data=f"100644 blob {blob}\t{name}\0".encode()).decode().strip()
    old = git.run("mktree", data=b"").decode().strip()
    found = generations_feed.code_change(git, old, new)
    assert [one.path for one in found.files] == ["evil.py"]
    assert not any("\x1b" in line or "\u202e" in line or len(line) > 2001 for line in found.lines)
    monkeypatch.setattr(generations_feed, "DIFF_BYTES", 1000)
    assert generations_feed.code_change(git, old, new).cut
    with pytest.raises(GitError):
        generations_feed.code_change(git, "0" * 40, new)
