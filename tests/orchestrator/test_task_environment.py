"""`[environment] network` and `rootfs` of a task: what is read and refused, and trials with them."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import rootfs
from orchestrator.errors import ConfigError
from orchestrator.task_files import prepare
from orchestrator.tasks import load_task
from sandbox.host import Host
from tests.image import image as image
from tests.image import own_python as own_python
from tests.orchestrator import trial_kit
from tests.orchestrator.test_tasks import make_task, refusal
from tests.orchestrator.trial_kit import TOP, TrialKit

environments, kit = trial_kit.environments, trial_kit.kit


def test_values(tmp_path: Path) -> None:
    (tmp_path / "image/usr").mkdir(parents=True)
    toml = '[environment]\nnetwork = ["example.org:443", "[::1]:80"]\nrootfs = "../image"\n'
    task = load_task(make_task(tmp_path, toml=toml))
    assert (task.network, task.rootfs) == (("example.org:443", "[::1]:80"), tmp_path / "image")
    assert task.notes == ()
    plain = load_task(make_task(tmp_path, "plain"))
    assert (plain.network, plain.rootfs) == ((), None)


def test_a_rootfs_has_what_its_dockerfile_builds(tmp_path: Path) -> None:
    (tmp_path / "image/usr").mkdir(parents=True)
    dockerfile = (
        "FROM golang AS build\nRUN make\nFROM debian\nRUN apt-get install -y jq\nCOPY --from=build /x /x\n"
        "WORKDIR /srv/w\nCOPY data /srv/w/data\n"
    )
    task = load_task(make_task(tmp_path, toml='[environment]\nrootfs = "../image"\n', dockerfile=dockerfile))
    assert (task.workdir, task.places) == ("/srv/w", ("/srv/w",))
    assert "Dockerfile: `RUN apt-get install -y jq` is taken as done in the rootfs" in task.notes
    assert "Dockerfile: the rootfs instead of debian" in task.notes


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ('network = "example.org:443"', "environment.network"),
        ('network = ["example.org"]', "environment.network: 'example.org': not an entry for an allow-list: no port"),
        ('network = ["*.org:443"]', "neither a host name nor an address"),
        ("network = [443]", "environment.network"),
        ("rootfs = 5", "environment.rootfs"),
        ('rootfs = "/no/such/image"', "environment.rootfs: there is no directory /no/such/image"),
        ('rootfs = "environment"', "environment.rootfs: it lies in the task's directory"),
        ('rootfs = ".."', "environment.rootfs: it lies in the task's directory, or holds it"),
    ],
)
def test_bad_input_task_environment(tmp_path: Path, toml: str, expected: str) -> None:
    message = refusal(make_task(tmp_path, toml=f"[environment]\n{toml}\n"))
    assert expected in message and "task.toml" in message and "fix:" in message


@pytest.mark.bad_input
def test_bad_input_workdir_is_a_link_in_the_rootfs(tmp_path: Path) -> None:
    (tmp_path / "image/usr").mkdir(parents=True)
    (tmp_path / "image/app").symlink_to("/etc")
    task = load_task(make_task(tmp_path, toml='[environment]\nrootfs = "../image"\n'))
    with Host.detect(tmp_path / "state") as host, pytest.raises(ConfigError) as caught:
        prepare(task, host, tmp_path / "files")
    print(caught.value.render())
    assert "/app of the rootfs: a symlink" in caught.value.render()


@pytest.fixture
def port() -> Iterator[int]:
    """A site on loopback that says hello."""

    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"42\n")

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.sandbox
def test_every_connection_is_in_the_record(kit: TrialKit, port: int) -> None:
    program = f"""
import urllib.request, urllib.error
try:
    urllib.request.urlopen("http://evil.test:{port}/")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
open("answer", "wb").write(urllib.request.urlopen("http://127.0.0.1:{port}/").read())
"""
    test = f"""
python3 -c 'import urllib.request; print(urllib.request.urlopen("http://127.0.0.1:{port}/").read())' || exit 1
{trial_kit.FORTY_TWO}"""
    task = kit.task(test, f'[environment]\nnetwork = ["127.0.0.1:{port}"]\n')
    record = kit.run(program, task)
    print(json.dumps(record.to_json(), indent=1))
    assert (record.outcome, record.reward) == ("completed", 1.0)
    seen = [(c["by"], c["host"], c["port"], c["allowed"], c["protocol"]) for c in record.connections]
    assert seen == [
        ("instance", "evil.test", port, False, "http"),
        ("instance", "127.0.0.1", port, True, "http"),
        ("verifier", "127.0.0.1", port, True, "http"),
    ]
    assert record.connections[1]["received"] > 40 and "allow-list" in record.connections[0]["detail"]
    assert "not in the allow-list" in (kit.home.campaigns / "c1" / record.id / "stdout.txt").read_text()
    assert json.loads(json.dumps(record.to_json())) == record.to_json()


@pytest.mark.sandbox
def test_a_trial_without_it_has_no_network(kit: TrialKit) -> None:
    record = kit.run("import socket; assert socket.socket().connect_ex(('127.0.0.1', 3128)) == 111")
    assert (record.outcome, record.connections) == ("completed", ())


@pytest.mark.sandbox
@pytest.mark.timeout(1000)
@pytest.mark.usefixtures("own_python")
def test_a_trial_in_a_rootfs(kit: TrialKit, image: Path) -> None:
    """Instance, oracle and verifier run in it; what it has at the workdir is there, and can be written."""
    test = """
[ -e /opt/tool/run ] && [ "$(cat deep/image.txt)" = changed ] && [ -e start.txt ] || exit 1
confine python3 -c 'print(open("answer").read())' | grep -q 42 || exit 1
pytest --version || exit 1
echo 1 > /logs/verifier/reward.txt
"""
    toml = f'[environment]\nrootfs = "{image}"\n'
    task = kit.task(test, toml, {"solution/solve.sh": "echo 42 > answer; echo changed > deep/image.txt\n"})
    program = """
import subprocess
print(open("/etc/os-release").read())
assert subprocess.check_output(["/opt/tool/run"]) == b"a tool of the image\\n"
assert open("deep/image.txt").read() == "from the image\\n" and open("start.txt").read() == "start\\n"
open("deep/image.txt", "w").write("changed\\n")
open("answer", "w").write("42")
"""
    record = kit.run(program, task)
    said = (kit.home.campaigns / "c1" / record.id / "stdout.txt").read_text()
    assert "bookworm" in said, (record, (kit.home.campaigns / "c1" / record.id / "stderr.txt").read_text())
    assert (record.outcome, record.reward, record.changes) == ("completed", 1.0, 2), record
    assert (image / "app/deep/image.txt").read_text() == "from the image\n"


@pytest.mark.sandbox
@pytest.mark.timeout(1000)
@pytest.mark.usefixtures("own_python")
def test_the_standard_agent_in_a_rootfs(kit: TrialKit, image: Path) -> None:
    task = kit.task(toml=f'[environment]\nrootfs = "{image}"\n')
    policy = '[[rule]]\nwhen = "not(single)"\nanswer = "<single>echo 42 > answer</single>"\n' + trial_kit.STOPS
    kit._context = kit.context(policy)
    record = kit.run(kit.agent(), task)
    assert (record.outcome, record.reward) == ("completed", 1.0), record


@pytest.mark.sandbox
@pytest.mark.bad_input
def test_bad_input_rootfs_that_python_does_not_run_in(kit: TrialKit, tmp_path: Path) -> None:
    """No bash; then a bash whose libraries are not there. Both are refused before anything is spent."""
    for number in (1, 2):
        place = tmp_path / f"image{number}"
        (place / "usr/bin").mkdir(parents=True)
        (place / "bin").symlink_to("usr/bin")
    (tmp_path / "image2/usr/bin/bash").write_bytes(Path("/bin/bash").read_bytes())
    (tmp_path / "image2/usr/bin/bash").chmod(0o755)
    for number in (1, 2):
        task = kit.task(toml=f'[environment]\nrootfs = "{tmp_path}/image{number}"\n')
        with pytest.raises(ConfigError) as caught:
            kit.run("", task)
        print(caught.value.render())
        assert "the agent's environment can't run in the rootfs" in str(caught.value) and "bash" in str(caught.value)


@pytest.mark.sandbox
@pytest.mark.bad_input
@pytest.mark.timeout(1000)
@pytest.mark.usefixtures("own_python")
def test_bad_input_rootfs_without_a_library(kit: TrialKit, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extension module whose library the image has not: the loader's own words are the reason."""
    monkeypatch.setattr(rootfs, "PROGRAM", "import ssl")
    monkeypatch.setattr(rootfs, "_known", {})
    task = kit.task(toml=f'[environment]\nrootfs = "{image}"\n')
    with pytest.raises(ConfigError) as caught:
        rootfs.check_verifier(kit.host, task.task, kit.verifier_env)
    print(caught.value.render())
    assert "libssl" in str(caught.value)


@pytest.mark.sandbox
@pytest.mark.timeout(1000)
@pytest.mark.usefixtures("own_python")
def test_task_check_in_a_rootfs(mode: str, image: Path, tmp_path: Path, kit: TrialKit) -> None:
    task = make_task(tmp_path, "inside", f'[environment]\nrootfs = "{image}"\n')
    (task / "solution/solve.sh").write_text("[ -e /opt/tool/run ] && echo 42 > answer\n")
    words = [sys.executable, "-m", "orchestrator", "task", "check", "--json", str(task)]
    environment = {**os.environ, "PYTHONPATH": str(TOP), "SIA_HOME": str(kit.home.root)}
    found = subprocess.run(words, cwd=kit.directory / "repo", capture_output=True, check=False, env=environment)
    assert found.returncode == 0, found.stderr + found.stdout
