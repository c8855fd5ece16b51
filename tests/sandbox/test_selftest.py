"""The self-test passes here, and would not where a protection is missing."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sandbox import selftest
from sandbox.host import Host

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]
ALLOW_ALL = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)


def proof(words: str) -> selftest.Proof:
    return next(proof for proof in selftest.PROOFS if words in proof.promise)


def test_all_promises_hold(tmp_path: Path) -> None:
    findings = selftest.selftest(tmp_path)
    assert [finding for finding in findings if finding.state != "ok"] == []
    assert len(findings) > len(selftest.PROOFS) + 10


def test_a_filter_that_lets_everything_pass_is_found(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "seccomp", lambda _: ALLOW_ALL)
    place = tmp_path / "p"
    place.mkdir(mode=0o711)
    said = proof("system calls").run(host, place) or ""
    assert {"clone3", "AF_VSOCK", "io_uring_setup"} <= set(said.split())


def test_a_limit_that_is_not_enforced_is_found(host: Host, tmp_path: Path) -> None:
    place = tmp_path / "p"
    place.mkdir(mode=0o711)
    said = selftest._limit("seconds", "exit 3", seconds=20)(host, place) or ""
    assert "not ended by it" in said


def test_every_proof_names_a_fix() -> None:
    assert all(len(proof.fix) > 20 for proof in selftest.PROOFS)
