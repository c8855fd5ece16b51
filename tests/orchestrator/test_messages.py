"""The message log: offsets, whole messages, torn writes, bad input."""

from __future__ import annotations

import multiprocessing
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import database
from orchestrator.errors import SiaError
from orchestrator.home import open_home
from orchestrator.ledger_values import Data
from orchestrator.messages import MESSAGE_LIMIT, MessageLog
from orchestrator.saved_input import after_crash


def test_offsets_follow_each_other(tmp_path: Path) -> None:
    log = MessageLog(tmp_path / "new" / "messages.log")
    assert log.read(0, 100) == b""
    first, second = log.append("one"), log.append("zwei ü\n")
    assert (first.start, first.end, second.start) == (0, 4, 4)
    assert second.end == log.size() == 4 + len("zwei ü\n".encode())
    assert log.read(second.start, 100) == "zwei ü\n".encode()


def test_a_forged_count_does_not_swallow_later_messages(tmp_path: Path) -> None:
    """The state that a killed main left claims that it has read far beyond the end of the log."""
    (tmp_path / ".git").mkdir()
    home = open_home(tmp_path)
    log = MessageLog(home.main / "messages.log")
    log.append("before")
    state = home.main / "levels/1/data/upper/state"
    state.mkdir(parents=True)
    (state / "agent.xml").write_text('<state stdin_taken="999999999999999"/>')
    with closing(database.connect(home.database)) as store:
        store.execute("INSERT INTO generation VALUES (0, 'c', 't', NULL, 'first', NULL, NULL, 0, 'good', NULL)")
        row = "INSERT INTO launch (nonce, generation, level, stdin_start, stdin_count, started)"
        store.execute(f"{row} VALUES ('main-1', 0, 1, 0, 0, 0)")
        offset = after_crash(home, store, "main-1", Data((), 1, 0))
    log.append("after")
    assert log.read(offset, 1000) == b"after\n"


def test_only_whole_messages_are_read(tmp_path: Path) -> None:
    log = MessageLog(tmp_path / "messages.log")
    log.append("first")
    with log.path.open("ab") as file:
        file.write(b"torn by a ki")
    assert log.read(0, 1000) == b"first\n"
    assert log.append("next").start == len(b"first\ntorn by a ki")
    assert log.read(0, 1000) == b"first\ntorn by a ki\nnext\n"


def test_a_message_larger_than_the_room_comes_in_pieces(tmp_path: Path) -> None:
    log = MessageLog(tmp_path / "messages.log")
    log.append("x" * 50)
    taken, offset = b"", 0
    while piece := log.read(offset, 16):
        taken, offset = taken + piece, offset + len(piece)
    assert taken == b"x" * 50 + b"\n"


def _append_many(path: Path, name: str) -> None:
    for number in range(50):
        MessageLog(path).append(f"{name} {number} " + "." * 3000)


def test_several_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "messages.log"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = path.read_text().splitlines()
    assert len(lines) == 100
    assert all(len(line) > 3000 for line in lines)
    for name in "ab":
        assert [line.split()[1] for line in lines if line.startswith(name)] == [str(number) for number in range(50)]


@pytest.mark.bad_input
@pytest.mark.parametrize("text", ["", " \n", "a\0b", "\udcff", "x" * (MESSAGE_LIMIT + 1)])
def test_bad_input_message(tmp_path: Path, text: str) -> None:
    with pytest.raises(SiaError) as caught:
        MessageLog(tmp_path / "messages.log").append(text)
    print(caught.value.render())
    assert not (tmp_path / "messages.log").exists()


@pytest.mark.bad_input
def test_bad_input_message_log_not_writable(tmp_path: Path) -> None:
    (tmp_path / "messages.log").mkdir()
    with pytest.raises(SiaError) as caught:
        MessageLog(tmp_path / "messages.log").append("hello")
    print(caught.value.render())
    assert "can't be stored" in caught.value.what
