"""Agent environments: strict requirements, built whole or not at all, readable by all, nothing of them run outside."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import zipfile
from base64 import urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator import environments, installers
from orchestrator.candidates import build, prepare
from orchestrator.cli import env
from orchestrator.environments import MARKER, agent_environment, base_python, verifier_environment
from orchestrator.errors import ConfigError, Failed, Refused
from orchestrator.home import Home
from orchestrator.requirements import parse

from .conftest import AgentRepo, show

DIGEST = "a" * 64


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "state", tmp_path)


def wheel(directory: Path, name: str, files: dict[str, str]) -> bytes:
    """A wheel made here, and the requirements line that pins it."""
    directory.mkdir(exist_ok=True)
    about = f"{name}-1.0.dist-info"
    files = files | {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, content in files.items():
        digest = urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    target = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, content in (files | {f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}).items():
            archive.writestr(path, content)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(target.read_bytes()).hexdigest()}\n".encode()


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages come from a directory only, by the variables that operators use."""
    directory = tmp_path / "wheels"
    for prefix in ("PIP", "UV"):
        monkeypatch.setenv(f"{prefix}_NO_INDEX", "1")
        monkeypatch.setenv(f"{prefix}_FIND_LINKS", str(directory))
    return directory


def test_built_once_and_found_again(home: Home, local_index: Path) -> None:
    pinned = wheel(local_index, "greeting", {"greeting.py": "TEXT = 'hello'\n"})
    made = agent_environment(home, pinned, build=True)
    python = made / "bin" / "python"
    ran = subprocess.run(
        [python, "-c", "import greeting; print(greeting.TEXT)"], capture_output=True, text=True, env={}
    )
    assert ran.stdout == "hello\n", ran.stderr
    shutil.rmtree(local_index)
    start = time.perf_counter()
    assert agent_environment(home, b"# the same\n" + pinned, build=False) == made
    assert time.perf_counter() - start < 0.02
    assert base_python(made) == Path(sys._base_executable).resolve()  # type: ignore[attr-defined]


def test_holds_nothing_but_the_listed_packages(home: Home, local_index: Path) -> None:
    made = agent_environment(home, wheel(local_index, "greeting", {"greeting.py": ""}), build=True)
    (packages,) = made.glob("lib/python3*/site-packages")
    assert {path.name for path in packages.iterdir()} == {"greeting.py", "greeting-1.0.dist-info", "__pycache__"}


def test_readable_by_other_users_and_compiled(home: Home, local_index: Path) -> None:
    pinned = wheel(local_index, "greeting", {"greeting.py": "TEXT = 1\n"})
    old = os.umask(0o077)
    try:
        made = agent_environment(home, pinned, build=True)
    finally:
        os.umask(old)
    for path in [made, *made.rglob("*")]:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode):
            assert mode & 0o004 and not mode & 0o022, path
            assert not stat.S_ISDIR(mode) or stat.S_IMODE(mode) == 0o755, path
    assert list(made.glob("lib/python3*/site-packages/__pycache__/greeting.*.pyc"))


def test_no_package_code_runs_while_building(home: Home, local_index: Path, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    code = f"import os; open({str(sprung)!r}, 'w').close()\n"
    files = {"evil.pth": code, "evil.py": code, "sitecustomize.py": code, "usercustomize.py": code}
    agent_environment(home, wheel(local_index, "evil", files), build=True)
    assert not sprung.exists()


def test_the_verifier_has_pytest_at_its_own_path(home: Home) -> None:
    made = verifier_environment(home)
    shebang = (made / "bin" / "pytest").read_text().splitlines()[0]
    assert shebang.startswith(f"#!{made}/bin/python") or "/bin/sh" in shebang
    ran = subprocess.run([made / "bin" / "python3", "-m", "pytest", "--version"], capture_output=True, text=True)
    assert "pytest 8" in ran.stdout + ran.stderr


def test_interrupted_builds_are_done_again(home: Home, local_index: Path) -> None:
    pinned = wheel(local_index, "greeting", {"greeting.py": ""})
    code = (
        "import sys; from pathlib import Path; from orchestrator.home import Home;"
        "from orchestrator.environments import agent_environment;"
        "agent_environment(Home(Path(sys.argv[1]), Path(sys.argv[1])), sys.argv[2].encode(), build=True)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(home.root), pinned.decode()]) as process:
        while not list(home.environments.glob("*/pyvenv.cfg")):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    (half,) = [path for path in home.environments.iterdir() if path.is_dir()]
    assert not (half / MARKER).exists()
    with pytest.raises(Refused, match="has not been built"):
        agent_environment(home, pinned, build=False)
    assert agent_environment(home, pinned, build=True) == half
    assert json.loads((half / MARKER).read_text())["python"]


def test_concurrent_builds_make_one(home: Home, local_index: Path) -> None:
    pinned = wheel(local_index, "greeting", {"greeting.py": ""})
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda _: agent_environment(home, pinned, build=True), range(4)))
    assert len(made) == 1


def test_a_vanished_interpreter_means_build_again(home: Home) -> None:
    made = agent_environment(home, b"", build=True)
    (made / "bin" / "python").unlink()
    (made / "bin" / "python").symlink_to("/nonexistent/python")
    with pytest.raises(Refused):
        agent_environment(home, b"", build=False)
    assert agent_environment(home, b"", build=True) == made


def test_only_sources_of_packages_are_kept_of_the_environment() -> None:
    given = {
        "PIP_INDEX_URL": "a", "PIP_TARGET": "b", "PIP_CONSTRAINT": "c", "PIP_NO_BINARY": "d", "UV_INDEX_URL": "e",
        "UV_INDEX_CORP_PASSWORD": "f", "HTTPS_PROXY": "g", "https_proxy": "h", "OPENAI_API_KEY": "i", "PYTHONPATH": "j",
        "HOME": "k", "UV_PYTHON": "l", "PIP_PREFIX": "m", "UV_CONSTRAINT": "n",
    }  # fmt: skip
    assert set(installers.kept(given).values()) == {"a", "e", "f", "g", "h"}


def test_another_base_interpreter_is_another_environment(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    default = agent_environment(home, b"", build=True)
    other = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if not other or Path(other).resolve() == base_python(default):
        pytest.skip("there is only one interpreter")
    monkeypatch.setenv("SIA_PYTHON", other)
    try:
        made = agent_environment(home, b"", build=True)
    except (ConfigError, Failed):
        pytest.skip("the other interpreter can't be used")
    assert made != default and base_python(made) == Path(other).resolve()


def test_parsed_requirements_are_normalised() -> None:
    text = (
        "# comment\n\n"
        f"Foo.Bar_baz==1.0 \\\n    --hash=sha256:{'b' * 64} \\\n    --hash=sha256:{DIGEST}  # why\n"
        f"abc==2.0rc1+local.1 ; python_version >= '3.11' and sys_platform == 'linux' --hash=sha256:{DIGEST}\r\n"
    )
    assert [entry.line() for entry in parse(text.encode())] == [
        f"abc==2.0rc1+local.1 ; python_version >= '3.11' and sys_platform == 'linux' --hash=sha256:{DIGEST}",
        f"foo-bar-baz==1.0 --hash=sha256:{DIGEST} --hash=sha256:{'b' * 64}",
    ]
    assert parse(b"") == parse(b"# nothing\n\n \\\n\n") == ()


HASH = f" --hash=sha256:{DIGEST}"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-r other.txt", "option -r is not allowed"),
        ("--index-url https://example.invalid/simple", "option --index-url"),
        ("--extra-index-url=https://example.invalid", "option --extra-index-url"),
        ("-e .", "option -e"),
        ("--no-binary :all:", "option --no-binary"),
        ("https://example.invalid/x-1.0-py3-none-any.whl" + HASH, "URLs are not allowed"),
        ("git+https://example.invalid/x.git", "URLs are not allowed"),
        ("x @ file:///etc/passwd" + HASH, "URLs are not allowed"),
        ("x@ wheel" + HASH, "direct references are not allowed"),
        ("./x-1.0-py3-none-any.whl" + HASH, "paths are not allowed"),
        ("/etc/passwd", "paths are not allowed"),
        ("x-1.0-py3-none-any.whl" + HASH, "paths are not allowed"),
        ("x==${SECRET}" + HASH, "variables are not expanded"),
        ("${HOME}/x", "variables are not expanded"),
        ("x==1.0", "x has no hash"),
        ("x==1.0 --hash=md5:abc", "unusable hash"),
        ("x==1.0 --hash=sha256:xyz", "unusable hash"),
        ("x>=1.0" + HASH, "not of the form name==version"),
        ("x==1.*" + HASH, "not of the form name==version"),
        ("x" + HASH, "not of the form name==version"),
        ("x===1.0" + HASH, "not of the form name==version"),
        ("x[extra]==1.0" + HASH, "extras are not allowed"),
        ("x==1.0,<2" + HASH, "not of the form name==version"),
        ("x==1.0 --config-settings=a=b" + HASH, "not of the form name==version"),
        ("x==1.0" + HASH + " --global-option=x", "not of the form name==version"),
        ("x==1.0 \\\n-r other" + HASH, "not of the form name==version"),
        ("x==1.0\x0b-r other" + HASH, "not of the form name==version"),
    ],
)
def test_bad_input_requirements(line: str, expected: str, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Refused, match=expected) as caught:
        agent_environment(home, f"# first\n{line}\n".encode(), build=True)
    assert "line 2" in str(caught.value)
    show(capsys, caught.value)
    assert not home.environments.exists()


@pytest.mark.bad_input
def test_bad_input_requirements_file(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    many = "".join(f"p{number}==1.0{HASH}\n" for number in range(501)).encode()
    for content, expected in ((b"\xff\xfe", "not UTF-8"), (b"#" * 300_000, "larger than"), (many, "more than 500")):
        with pytest.raises(Refused, match=expected) as caught:
            agent_environment(home, content, build=True)
        show(capsys, caught.value)


@pytest.mark.bad_input
def test_bad_input_packages_that_cannot_be_installed(
    home: Home, local_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = wheel(local_index, "greeting", {"greeting.py": ""})
    for content in (b"absent==1.0" + HASH.encode(), pinned[:-65] + DIGEST.encode(), b"greeting==2.0" + HASH.encode()):
        with pytest.raises(Failed, match="could not be installed") as caught:
            agent_environment(home, content, build=True)
        show(capsys, caught.value)
    assert not [path for path in home.environments.iterdir() if path.is_dir()]


@pytest.mark.bad_input
def test_bad_input_package_that_replaces_the_interpreter(
    home: Home, local_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = wheel(local_index, "usurper", {"usurper-1.0.data/data/bin/python": "#!/bin/sh\n", "usurper.py": ""})
    base = environments.interpreter()
    before = base.read_bytes()
    with pytest.raises(Failed, match=r"replaces the environment's interpreter|could not be installed") as caught:
        agent_environment(home, pinned, build=True)
    show(capsys, caught.value)
    assert base.read_bytes() == before


@pytest.mark.bad_input
def test_bad_input_no_such_interpreter(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for value, expected in (("/nonexistent/python", "no such interpreter"), ("/bin/true", "not a usable Python")):
        monkeypatch.setenv("SIA_PYTHON", value)
        with pytest.raises(ConfigError, match=expected) as caught:
            agent_environment(home, b"", build=True)
        show(capsys, caught.value)


def test_sia_env_build_is_the_consent(
    agent_repo: AgentRepo, local_index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = agent_repo.repository
    pinned = wheel(local_index, "greeting", {"greeting.py": ""})
    agent_repo.branch("needy", {"instance/requirements.txt": pinned.decode()})
    judged = prepare(repository, agent_repo.settings, "needy", repository.head()).judged
    with pytest.raises(Refused, match="sia env build"):
        build(agent_repo.home, agent_repo.settings, judged)
    monkeypatch.chdir(agent_repo.path)
    assert env.build("needy", as_json=True) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["commit"] == judged
    assert build(agent_repo.home, agent_repo.settings, judged).environment == Path(made["environments"]["needy"])
