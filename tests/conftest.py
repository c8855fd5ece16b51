"""Two modes for everything that starts sandboxes: as root, and as an unprivileged user.

A test that takes the fixture `mode` runs once in each. Started by an ordinary user, there is only "user". Started by
root, the "user" items of a file run in one child pytest under a uid of its own, and their reports are shown here as
if they had run here. So in both modes the test's body and all its fixtures simply run with the rights at hand.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sandbox import interpreter
from sandbox.host import Host
from tests import bad_input

ROOT = Path(__file__).resolve().parent.parent
AS_USER = Path(__file__).with_name("as_user.py")
USER = 61002  # belongs to nobody
IS_ROOT = os.geteuid() == 0
MODES = ["root", "user"] if IS_ROOT else ["user"]
REPORTS = "SIA_TEST_REPORTS"  # in the child: where its reports go
ENVIRONMENTS = "SIA_TEST_ENVIRONMENTS"  # in the child: where Python environments are built once for the whole run
CHILD_TIMEOUT = 900
LONGEST = ("test_demo.py", "test_story_tmux.py", "test_promotion_faults.py")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """ "root" or "user": the rights that this test runs with."""
    return str(request.param)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose state lies in the test's own directory."""
    with Host.detect(tmp_path / "state") as found:
        yield found


@pytest.fixture(scope="session")
def python_for_user() -> Path:
    """An interpreter with the project installed; under `run_as` it can be reached by the user, wherever it lies."""
    return Path(sys.executable)


def run_as(
    mode: str, argv: Sequence[str | Path], *, cwd: Path | None = None, timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a command with the rights of `mode` (root stays root; a user stays that user), capturing its output."""
    command = [str(word) for word in argv]
    if mode == "user" and IS_ROOT:
        command = [*_user_prefix(), *command]
    return subprocess.run(command, cwd=cwd, timeout=timeout, capture_output=True, check=False, **options)


@pytest.fixture(name="run_as", scope="session")
def run_as_fixture() -> Any:
    """The function `run_as(mode, argv, *, cwd, timeout, **subprocess_options)`."""
    return run_as


def _user_prefix() -> list[str]:
    needed = [*map(str, interpreter.roots(Path(sys.executable))), str(ROOT)]
    base = Path(sys.executable).resolve()
    return [str(base), "-I", "-S", str(AS_USER), str(USER), *needed, "--"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the child: hand every report over."""
    path = os.environ.get(REPORTS)
    if path and _config is not None:
        data = _config.hook.pytest_report_to_serializable(config=_config, report=report)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"node": report.nodeid, "data": data}, default=str) + "\n")


_config: pytest.Config | None = None


def pytest_configure(config: pytest.Config) -> None:
    """Remember the configuration for the hook above, which does not get it."""
    global _config
    _config = config
    if REPORTS not in os.environ:  # some containers set it; then each of thousands of processes compiles all it imports
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:  # by nohup, or by a shell that put us into the background
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if getattr(config.option, "testrunuid", "") is None and not hasattr(config, "workerinput"):
        config.option.testrunuid = uuid.uuid4().hex  # so that this process knows it too, and can clean up


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As root: the first "user" item of a file waits for the child that runs all of them.

    They come first, file by file: two workers in one file would wait for the same child. Then what takes longest, so
    that no worker is left alone with it at the end.
    """
    if not IS_ROOT:
        return
    for item in items:
        if _is_user_item(item):
            item.add_marker(pytest.mark.timeout(CHILD_TIMEOUT + 60), append=False)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: (not _is_user_item(item), item.path.name not in LONGEST))


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """As root: take the reports of "user" items from the child."""
    if not IS_ROOT or not _is_user_item(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for data in _reports(item).get(item.nodeid, ()):
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.session._setupstate.teardown_exact(nextitem)  # what the item before left set up for this one's file
    return True


def _is_user_item(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    return call is not None and call.params.get("mode") == "user"


_cache: dict[Path, dict[str, list[Any]]] = {}


def _reports(item: pytest.Item) -> dict[str, list[Any]]:
    """Reports of all user items of this item's file; several xdist workers share one run of the child."""
    if item.path not in _cache:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        place = Path(tempfile.gettempdir()) / f"sia-user-tests-{run}"
        place.mkdir(mode=0o755, exist_ok=True)
        done = place / (item.path.relative_to(ROOT).as_posix().replace("/", "-") + ".jsonl")
        with open(place / f"{done.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                _run_child(item, done, _environments(place))
        found: dict[str, list[Any]] = {}
        for line in done.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            found.setdefault(entry["node"], []).append(entry["data"])
        _cache[item.path] = found
    return _cache[item.path]


def _environments(place: Path) -> Path:
    """A directory that all children of this run share; the user's own, since only its user builds there."""
    path = place / "environments"
    path.mkdir(exist_ok=True)
    os.chown(path, USER, USER)
    return path


def _run_child(item: pytest.Item, done: Path, environments: Path) -> None:
    nodes = [i.nodeid for i in item.session.items if i.path == item.path and _is_user_item(i)]
    place = Path(tempfile.mkdtemp(prefix="sia-user-"))
    os.chown(place, USER, USER)
    try:
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(place), "TMPDIR": str(place)}
        environment |= {REPORTS: str(place / "reports.jsonl"), "PYTHONDONTWRITEBYTECODE": "1"}
        environment[ENVIRONMENTS] = str(environments)
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:xdist",
            "-p",
            "no:cacheprovider",
            f"--basetemp={place / 'tmp'}",
            *nodes,
        ]
        child = run_as("user", words, cwd=ROOT, timeout=CHILD_TIMEOUT, env=environment)
        reports = place / "reports.jsonl"
        lines = reports.read_text(encoding="utf-8").splitlines() if reports.exists() else []
        reported = {json.loads(line)["node"] for line in lines}
        said = (child.stdout + child.stderr).decode("utf-8", "replace")[-4000:]
        for node in nodes:
            if node not in reported:
                report = pytest.TestReport(node, item.location, {}, "failed", f"not run as user:\n{said}", "call")
                data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
                lines.append(json.dumps({"node": node, "data": data}, default=str))
        done.write_text("\n".join(lines) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the shared reports; the controller of xdist comes last."""
    if not hasattr(session.config, "workerinput"):
        for run in (getattr(session.config.option, "testrunuid", None), os.getpid()):
            shutil.rmtree(Path(tempfile.gettempdir()) / f"sia-user-tests-{run}", ignore_errors=True)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """`pytest -m bad_input` ends with the numbered cases and their messages."""
    reports = [
        report
        for name in ("passed", "failed")
        for report in terminalreporter.stats.get(name, [])
        if "bad_input" in report.keywords and report.when == "call"
    ]
    bad_input.summarise(terminalreporter, reports, config.option.markexpr)
