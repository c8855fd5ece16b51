"""An agent's own log is kept whole, however long its run was; what is hostile is bounded, and said."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import log_archive, own_logs
from orchestrator.captured import Stopped
from orchestrator.log_archive import LogArchive, Packer
from orchestrator.own_logs import Bounds, OwnLogs, kept_logs
from orchestrator.trial import run_trial
from tests.orchestrator import trial_kit
from tests.orchestrator.trial_kit import ONE_MODE, TrialKit

environments, kit = trial_kit.environments, trial_kit.kit

WRITES_A_LOG = """
import os
os.makedirs("/root/data/iterations/texts")
os.chdir("/root/data/iterations")
for number in range(1, 41):
    with open(f"{number:08d}.xml", "w") as file:
        file.write(f"<iteration>{number * 7919} " + "context " * number * 20 + "</iteration>")
with open("texts/large", "wb") as file:
    file.write(bytes(range(256)) * 1000)
os.mkfifo("fifo")
os.symlink("/etc/passwd", "link")
"""


@pytest.mark.sandbox
@ONE_MODE
def test_a_trial_keeps_all_of_a_long_log(kit: TrialKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """More files, bytes and larger files than are compared: none may be gone when the trial's layers are."""
    monkeypatch.setattr(own_logs, "FILES_CAP", 10)
    monkeypatch.setattr(own_logs, "TOTAL_CAP", 2000)
    monkeypatch.setattr(own_logs, "FILE_CAP", 500)
    monkeypatch.setattr(own_logs, "CHUNK", 1000)
    monkeypatch.setattr(log_archive, "GROUP_BYTES", 20_000)
    spec = kit.spec(kit.instance(WRITES_A_LOG), kit.task())
    record = run_trial(kit.context(), spec)
    assert record.outcome == "completed" and not (spec.directory / "layers").exists()
    archive = LogArchive(kept_logs(spec.directory))
    expected = {
        f"{n:08d}.xml": f"<iteration>{n * 7919} {'context ' * n * 20}</iteration>".encode() for n in range(1, 41)
    }
    expected["texts/large"] = bytes(range(256)) * 1000
    assert {name: archive.read(name) for name in archive.names} == expected
    assert archive.cuts == tuple(note for note in record.notes if note.startswith("the agent's own log"))
    assert archive.cuts == (
        "the agent's own log: 3 files were compared up to 500 bytes, the first: 00000003.xml",
        "the agent's own log: from 00000006.xml on it was not compared with the journal: it is too much",
    )


def keep(tmp_path: Path, bounds: Bounds | None = None, go_on: Callable[[], None] = lambda: None) -> LogArchive:
    """Keep the log below `tmp_path` as a trial does."""
    with Packer(tmp_path / "kept.zst") as packer:
        for _ in OwnLogs(tmp_path, bounds, go_on).keep(packer):
            pass
    return LogArchive(tmp_path / "kept.zst")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The directory of a log with two small files."""
    (tmp_path / "iterations").mkdir()
    for name in ("00000001.xml", "z.xml"):
        (tmp_path / "iterations" / name).write_bytes(name.encode())
    return tmp_path / "iterations"


def test_holes_without_end_are_cut_in_flat_memory(tmp_path: Path, log: Path) -> None:
    with (log / "hole").open("wb") as file:
        file.truncate(1 << 43)
    tracemalloc.start()
    archive = keep(tmp_path, Bounds(disk=10 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    kept = (80 << 20) - len("00000001.xml")
    assert 0 <= kept - ((1 << 43) - archive.missing("hole")) <= log_archive.CHUNK
    assert archive.names == ["00000001.xml", "hole"] and archive.read("00000001.xml") == b"00000001.xml"
    assert "it is kept up to hole, not whole: it is longer than 83,886,080 bytes" in archive.cuts[-1]
    assert peak < own_logs.FILE_CAP + 8 * log_archive.CHUNK
    assert (tmp_path / "kept.zst").stat().st_size < 1 << 20


@pytest.mark.parametrize(
    "module, bound, value, why",
    [
        (own_logs, "KEEP_SECONDS", -1.0, "took more than"),
        (log_archive, "SIZE_CAP", 10, "compressed"),
        (log_archive, "INDEX_CAP", log_archive._CUTS_ROOM, "too many names"),
    ],
)
def test_what_bounds_an_archive_is_named(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, module: object, bound: str, value: float, why: str
) -> None:
    monkeypatch.setattr(log_archive, "GROUP_BYTES", 1)
    monkeypatch.setattr(module, bound, value)
    (log / "00000002.xml").write_bytes(os.urandom(1000))
    (log / "00000003.xml").write_bytes(b"3")
    archive = keep(tmp_path)
    (cut,) = archive.cuts
    assert why in cut and "z.xml" not in archive.names and len(archive.names) < 4
    assert all(archive.read(name) == (log / name).read_bytes() for name in archive.names if not archive.missing(name))


def test_comparing_is_no_time_of_keeping(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a log that takes long to compare would be cut."""
    monkeypatch.setattr(own_logs, "KEEP_SECONDS", 0.5)
    with Packer(tmp_path / "kept.zst") as packer:
        for _ in OwnLogs(tmp_path).keep(packer):
            time.sleep(0.6)
    archive = LogArchive(tmp_path / "kept.zst")
    assert (archive.names, archive.cuts) == (["00000001.xml", "z.xml"], ())


def test_what_can_not_be_read_is_counted(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason, here that the path became a link between listing and opening."""
    listed = OwnLogs._files

    def swapped(self: OwnLogs) -> object:
        for name in listed(self):
            (log / name).unlink()
            (log / name).symlink_to("/etc/passwd")
            yield name

    monkeypatch.setattr(OwnLogs, "_files", swapped)
    archive = keep(tmp_path)
    assert archive.names == []
    assert archive.cuts == ("the agent's own log: 2 files that can't be read, the first: 00000001.xml",)


def test_the_end_of_a_campaign_ends_it(tmp_path: Path, log: Path) -> None:
    def stop() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        keep(tmp_path, go_on=stop)
    assert not (tmp_path / "kept.zst").exists() and not list(tmp_path.glob(".kept*"))
