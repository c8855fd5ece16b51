"""Iteration logs in one compressed file: each comes back byte for byte, damage is told, long runs stay small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import log_archive
from orchestrator.errors import Failed
from orchestrator.log_archive import LogArchive, pack

NAMES = st.text(min_size=1, max_size=20)


@given(st.dictionaries(NAMES, st.binary(max_size=200), max_size=12), st.integers(1, 500))
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
