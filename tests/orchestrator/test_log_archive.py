"""Iteration logs in one compressed file: each comes back byte for byte, damage is told, long runs stay small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import log_archive
from orchestrator.errors import Failed
from orchestrator.log_archive import LogArchive, Packer, pack

NAMES = st.text(min_size=1, max_size=20)


@given(st.dictionaries(NAMES, st.binary(max_size=200), max_size=12), st.integers(100, 1000))
@settings(max_examples=60)
def test_every_file_comes_back(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], group: int) -> None:
    path = tmp_path_factory.getbasetemp() / "property.zst"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_archive, "GROUP_BYTES", group)
        packed = pack(files.items(), path)
    archive = LogArchive(path)
    assert archive.names == list(files)
    assert {name: archive.read(name) for name in archive.names} == files
    assert (packed.files, packed.plain) == (len(files), sum(map(len, files.values())))
    assert packed.size == path.stat().st_size


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    """Logs that share nearly all of their context take less than 5 % of their plain size."""
    entries = [f"<single id='{n}'>{n * 7919 % 100_003:>6} {'abcdefgh' * (n % 90)}</single>\n" * 8 for n in range(400)]
    logs = ((f"{n:08d}.xml", "".join(entries[n : n + 30]).encode()) for n in range(370))
    packed = pack(logs, tmp_path / "iterations.zst")
    assert packed.size < 0.05 * packed.plain
    one = LogArchive(tmp_path / "iterations.zst").read("00000123.xml")
    assert one == "".join(entries[123:153]).encode()


def test_whole_or_not_at_all(tmp_path: Path) -> None:
    def files() -> object:
        yield "a", b"x"
        raise ValueError

    with pytest.raises(ValueError):
        pack(files(), tmp_path / "iterations.zst")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bad_input
@pytest.mark.parametrize("damage", ["empty", "foreign", "cut", "middle", "index"])
def test_bad_input_archive(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "iterations.zst"
    pack([("a", b"text " * 1000), ("b", b"more " * 1000)], path)
    data = path.read_bytes()
    path.write_bytes({
        "empty": b"", "foreign": b"PK" + data, "cut": data[:-9],
        "middle": data[:12] + b"\0\0\0\0" + data[16:], "index": data[:-8] + (1 << 40).to_bytes(8, "little"),
    }[damage])  # fmt: skip
    with pytest.raises(Failed) as caught:
        LogArchive(path).read("a")
    print(caught.value.render(), file=sys.stderr)


def test_a_file_larger_than_a_group_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_archive, "GROUP_BYTES", 1000)
    monkeypatch.setattr(log_archive, "CHUNK", 333)
    large = bytes(number % 251 for number in range(10_500))
    with Packer(tmp_path / "iterations.zst") as packer:
        packer.add("first", b"1" * 700)
        packer.start("large", len(large))
        for begin in range(0, len(large), 777):
            packer.write(large[begin : begin + 777])
        packer.add("empty", b"")
        packer.start("cut", 5000)
        packer.write(b"c" * 2000)
        packer.left_out("it is kept up to cut")
    archive = LogArchive(tmp_path / "iterations.zst")
    assert archive.read("large") == large
    assert (archive.read("empty"), archive.read("cut")) == (b"", b"c" * 2000)
    assert [archive.missing(name) for name in archive.names] == [0, 0, 0, 3000]
    assert archive.cuts == ("it is kept up to cut",)


def test_archives_of_before_are_read(tmp_path: Path) -> None:
    """Without checksums, and with an index that is a list."""
    compress = zstandard.ZstdCompressor().compress
    group, index = compress(b"onetwo"), compress(b'[["1", 8, 0, 3], ["2", 8, 3, 3]]')
    path = tmp_path / "iterations.zst"
    path.write_bytes(log_archive.MAGIC + group + index + (8 + len(group)).to_bytes(8, "little"))
    archive = LogArchive(path)
    assert ([archive.read(name) for name in archive.names], archive.cuts) == ([b"one", b"two"], ())


def test_one_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "iterations.zst"
    content = bytes(range(256)) * 8
    pack([("a", content[::-1]), ("b", content)], path)
    data = bytearray(path.read_bytes())
    place = data.index(bytes(range(200, 210)))  # stored as it is: only a checksum can tell
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(Failed, match="not whole"):
        [LogArchive(path).read(name) for name in "ab"]
