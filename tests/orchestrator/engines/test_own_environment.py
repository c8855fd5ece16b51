"""An engine in a virtual environment of its own, which has not this project but finds it where it is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import lxml
import pytest

from orchestrator import cli

TOP = Path(__file__).parents[3]
ENGINE = """
import sys
from orchestrator.engines.guided import Guides
from orchestrator.engines.serve import serve
from orchestrator.protocol import EngineUsage

class Model:
    guides = Guides("own")

    def token_limit(self):
        return 4096

    def token_count(self, request):
        return len(sys.prefix)  # which environment it runs in

    def infer(self, request, line):
        guide, _ = self.guides.of(request.schema, request.prefix)
        yield guide.ending(request.prefix, b"")[1].encode() if guide else b"unguided"
        return EngineUsage()

serve(Model())
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with an engine whose environment holds it, and lxml, and nothing else."""
    path = tmp_path / "checkout"
    (path / ".git").mkdir(parents=True)
    (path / "orchestrator").symlink_to(TOP / "orchestrator")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path / "own-venv"], check=True, timeout=60)
    (packages,) = (path / "own-venv/lib").glob("python*/site-packages")
    (packages / "lxml").symlink_to(Path(lxml.__file__).parent)
    (packages / "only_here.py").write_text(ENGINE)
    (path / "sia.toml").write_text('[engines.own]\ncommand = ["own-venv/bin/python", "-m", "only_here"]\n')
    return path


def test_an_engine_in_an_environment_of_its_own_answers_and_is_guided(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = [checkout / "own-venv/bin/python", "-I", "-c", "import lxml.etree, orchestrator"]
    ended = subprocess.run(alone, capture_output=True, text=True, check=False, cwd="/", timeout=60)
    assert "No module named 'orchestrator'" in ended.stderr
    monkeypatch.chdir(checkout)
    monkeypatch.delenv("SIA_HOME", raising=False)
    with pytest.raises(SystemExit) as ending:
        cli.main(["engines", "check", "own", "--json"])
    assert ending.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["token_limit"], found["token_count"]) == (4096, str(len(str(checkout / "own-venv"))))
    assert found["answer"] == "<answer>no</answer>"
