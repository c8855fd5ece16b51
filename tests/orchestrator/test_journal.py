"""Exchange store and journals: dedupe, chain, tampering with the files, kill -9."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import database
from orchestrator.errors import ConfigError, Failed, UsageError
from orchestrator.exchanges import ExchangeStore, cut
from orchestrator.journal import Asked, Exchange, Journal
from orchestrator.protocol import EngineUsage, Turn

TOP = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExchangeStore]:
    store = ExchangeStore(tmp_path / "exchanges")
    yield store
    store.close()


def exchange(n: int, context: str = "<context/>", reply: str = "<stop/>", **more: object) -> Exchange:
    asked = Asked(len(context), "00" * 32, system="sys", schema="xsd", context=context, seed=n, max_tokens=5)
    return Exchange(n, 1000.0 + n, "infer", asked, reply, 0.25, usage=EngineUsage(1, 2, 3, None), **more)  # type: ignore[arg-type]


def filled(store: ExchangeStore, count: int = 5) -> Journal:
    journal = Journal.create(store, "t", {"kind": "trial", "arm": "é"})
    for n in range(1, count + 1):
        journal.append(exchange(n, f"<context time='{n}'>é</context>", f"<stop/>{n}"))
    return journal


def test_what_is_written_is_read_back(store: ExchangeStore) -> None:
    journal = Journal.create(store, "t", {"kind": "trial"})
    turns = (Turn("user", "a"), Turn("assistant", "b\r\n\x00"))
    given = [
        exchange(1),
        exchange(2, reply="\x00\x1b\ufffe" * 100, error="engine x"),
        Exchange(3, 1.5, "infer", Asked(9, "11" * 32, turns=turns, prefix="<p>"), "", 0.0),
        Exchange(4, 2.5, "refused", Asked(9, "22" * 32, head="garbage"), "", 0.0, "error", None, "bad_request no"),
        Exchange(5, 3.5, "count", Asked(9, "33" * 32, prompt="44" * 32), "12", 0.0),
    ]
    for one in given:
        journal.append(one)
    opened = Journal.open(store, "t")
    assert list(opened) == given
    assert opened.get(3) == given[2] and opened.get(9) is None
    assert [one.reply for one in opened.replies()] == [one.reply for one in given]
    assert next(opened.replies()).asked.context == ""
    assert journal.seal() == journal.head
    with pytest.raises(Failed, match="sealed"):
        journal.append(exchange(6))


@given(
    st.binary(max_size=300), st.lists(st.sampled_from([b'\n<single id="a">', b"\n<stdout>", b"x" * 70000]), max_size=4)
)
def test_chunks_join_to_the_text(text: bytes, more: list[bytes]) -> None:
    whole = text + b"".join(more) + text
    assert b"".join(cut(whole)) == whole
    assert all(len(chunk) <= 65536 for chunk in cut(whole))


def test_a_text_of_tiny_entries_has_few_chunks() -> None:
    """Each chunk is looked up under the one lock of all lines: a text must not choose to have a million."""
    tiny = b"".join(b"\n<a id='%d" % n for n in range(500_000))
    chunks = cut(tiny)
    assert b"".join(chunks) == tiny and len(chunks) <= len(tiny) / 4096 + 1
    ordinary = b"".join(b'\n<single id="%d">%s</single>' % (n, b"x" * 200) for n in range(1000))
    assert len(cut(ordinary)) == 1001  # one for each entry


def test_consecutive_contexts_share_nearly_everything(store: ExchangeStore) -> None:
    journal = Journal.create(store, "t", {})
    entries: list[str] = []
    for n in range(1, 101):
        entries = [
            *entries[-19:],
            f'<single id="{n}"><![CDATA[{"".join(chr(33 + (n * i) % 90) for i in range(1000))}]]></single>',
        ]
        journal.append(exchange(n, f'<context time="{n}">\n' + "\n".join(entries) + "\n</context>"))
    (size,) = store._connection.execute("SELECT sum(length(data)) FROM chunk").fetchone()
    assert size < 100 * 1300  # every entry once, not twenty times
    assert journal.verify().problem is None


def test_a_taken_name_gets_a_number(store: ExchangeStore) -> None:
    names = [Journal.create(store, "t", {}).id for _ in range(3)]
    assert names == ["t", "t~2", "t~3"]
    assert [name for name, _ in Journal.names(store)] == names
    with pytest.raises(UsageError, match="no journal 'x'"):
        Journal.open(store, "x")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            "UPDATE entry SET record = CAST(replace(CAST(record AS TEXT), '1003', '1004') AS BLOB) WHERE n = 3",
            "entry 3 was altered",
        ),
        ("DELETE FROM entry WHERE n = 2", "entry 2 is missing"),
        ("DELETE FROM entry WHERE n = 5", "5 entries are under the head, 4 are there"),
        (
            "UPDATE chunk SET data = CAST('x' AS BLOB), packed = 0 WHERE data = CAST('<stop/>4' AS BLOB)",
            "entry 4: text",
        ),
        ("DELETE FROM text", "entry 1: text"),
        ("INSERT INTO entry SELECT journal, 6, hash, record FROM entry WHERE n = 5", "entry 6 does not follow"),
    ],
)
def test_every_alteration_is_found(store: ExchangeStore, damage: str, said: str) -> None:
    journal = filled(store)
    journal.seal()
    assert Journal.open(store, "t").verify().problem is None
    store._connection.execute(damage)
    assert said in (Journal.open(store, "t").verify().problem or "")


def test_a_rewritten_chain_does_not_fit_the_head(store: ExchangeStore, tmp_path: Path) -> None:
    """Someone who can write the exchange store alone can't forge a sealed journal."""
    filled(store).seal()
    other = ExchangeStore(tmp_path / "other", tmp_path / "other.db")
    created = Journal.open(store, "t").created
    forged = Journal(other, "t", {"kind": "trial", "arm": "é"}, created, 0, Journal.create(other, "t", {}).head)
    for n in range(1, 6):
        forged.append(exchange(n, reply="<forged/>"))
    rows = other._connection.execute("SELECT n, hash, record FROM entry").fetchall()
    for n, digest, record in rows:
        store._connection.execute("UPDATE entry SET hash = ?, record = ? WHERE n = ?", (digest, record, n))
    other.close()
    assert Journal.open(store, "t").verify().problem is not None


def test_an_open_journal_tells_how_far_its_head_reaches(store: ExchangeStore) -> None:
    filled(store, 40)
    found = Journal.open(store, "t").verify()
    assert (found.entries, found.covered, found.sealed, found.problem) == (40, 32, False, None)


def test_entries_whose_journal_a_power_cut_took_are_nobodys(store: ExchangeStore) -> None:
    """The store is flushed before `sia.db`: what is in between must not fail the next run of the same trial."""
    filled(store)
    store.heads.execute("DELETE FROM journal")
    again = Journal.create(store, "t", {})
    again.append(exchange(1))
    again.seal()
    assert again.id == "t~2" and Journal.open(store, "t~2").verify().problem is None


def test_what_a_power_cut_leaves_is_whole(
    store: ExchangeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that was not flushed is lost: of entries all since the last sync, of heads nothing."""
    disk = tmp_path / "disk"
    real = ExchangeStore.sync

    def flush(self: ExchangeStore) -> None:
        real(self)
        shutil.rmtree(disk, ignore_errors=True)
        shutil.copytree(store.path.parent, disk)

    monkeypatch.setattr(ExchangeStore, "sync", flush)
    journal = Journal.create(store, "t", {})
    for n in range(1, 40):
        journal.append(exchange(n))
        if n >= 32:
            left = ExchangeStore(disk, tmp_path / "sia.db")
            found = Journal.open(left, "t").verify()
            left.close()
            assert (found.problem, found.entries, found.covered, found.sealed) == (None, 32, 32, False)
    journal.sync()
    left = ExchangeStore(disk, tmp_path / "sia.db")
    assert Journal.open(left, "t").verify().covered == 39
    left.close()
    journal.seal()
    journal.sync()  # nothing to do


def test_what_was_appended_survives_kill_9(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom orchestrator.exchanges import ExchangeStore\n"
        "from orchestrator.journal import Journal\nfrom tests.orchestrator.test_journal import exchange\n"
        "journal = Journal.create(ExchangeStore(Path(sys.argv[1])), 't', {})\n"
        "for n in range(1, 10**6):\n    journal.append(exchange(n, f'<c>{n}</c>'))\n    print(n, flush=True)\n"
    )
    argv = [sys.executable, "-c", program, str(tmp_path / "exchanges")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=TOP) as writer:
        assert writer.stdout is not None
        for _ in range(150):
            seen = int(writer.stdout.readline())
        writer.kill()
        seen = int(([str(seen).encode(), *writer.stdout.read().split()])[-1])
    store = ExchangeStore(tmp_path / "exchanges")
    found = Journal.open(store, "t").verify()
    assert (found.problem, found.sealed) == (None, False)
    assert found.entries in (seen, seen + 1)
    assert Journal.create(store, "t", {}).id == "t~2"
    store.close()


def test_two_processes_may_write_at_once(tmp_path: Path, store: ExchangeStore) -> None:
    second = ExchangeStore(tmp_path / "exchanges")
    journals = [Journal.create(one, name, {}) for one, name in ((store, "a"), (second, "b"))]
    for n in range(1, 30):
        for journal in journals:
            journal.append(exchange(n, f"<context>{n}</context>"))
    assert all(Journal.open(store, name).verify().problem is None for name in "ab")
    second.close()


@pytest.mark.bad_input
def test_bad_input_exchange_store_that_is_damaged_or_newer(tmp_path: Path) -> None:
    (tmp_path / "exchanges").mkdir()
    path = tmp_path / "exchanges" / "exchanges.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(ConfigError) as raised:
        ExchangeStore(tmp_path / "exchanges")
    print(raised.value.render())
    assert path.read_bytes() == b"not a database" * 1000  # never replaced by an empty one
    path.unlink()
    ExchangeStore(tmp_path / "exchanges").close()
    connection = database.connect(path, read_only=True)
    connection.close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(ConfigError, match="version 99") as raised:
        ExchangeStore(tmp_path / "exchanges")
    print(raised.value.render())


@pytest.mark.bad_input
def test_bad_input_full_disk_while_writing(store: ExchangeStore) -> None:
    journal = filled(store, 3)
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Failed) as raised:
        for n in range(4, 400):
            journal.append(exchange(n, json.dumps([n * i * 7919 for i in range(2000)])))
    print(raised.value.render())
    store._connection.execute("PRAGMA max_page_count=1000000")
    written = journal.entries
    journal.append(exchange(written + 1))  # whole or not at all: it goes on where it was
    journal.seal()
    assert Journal.open(store, "t").verify().problem is None
