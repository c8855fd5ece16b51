"""A sandbox with an allow-list reaches what it names, through the proxy, and nothing else: real servers on loopback."""

from __future__ import annotations

import contextlib
import functools
import gc
import http.server
import json
import os
import resource
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import connections, gate, proxy
from sandbox.errors import CannotIsolate
from sandbox.host import Host
from sandbox.process import Outcome, Sandbox
from sandbox.spec import Limits, SandboxSpec

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]

# Inside, before each script: a connection to the proxy that said `words`, and what it answered.
SAY = """
import os, socket, sys, time, urllib.request, urllib.error
def ask(words, more=b"", port=3128):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(words)
        data = b""
        try:
            while piece := line.recv(65536):
                data += piece
        except ConnectionResetError:
            data += b"(reset)"
        return data
def status(words):
    return ask(words).split(b"\\r\\n")[0].decode()
"""


class _Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"{self.path} for {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class _Lines(socketserver.BaseRequestHandler):
    """Counts what it is sent, and who is there at the same time; answers at the end."""

    def handle(self) -> None:
        server: Any = self.server
        with server.lock:
            server.now += 1
            server.most = max(server.most, server.now)
        size = 0
        try:
            while data := self.request.recv(1 << 20):
                size += len(data)
            self.request.sendall(str(size).encode())
        except OSError:
            pass
        with server.lock:
            server.now -= 1
            server.got += size


@contextlib.contextmanager
def serving(handler: Any, kind: Any = http.server.ThreadingHTTPServer) -> Iterator[Any]:
    server = kind(("127.0.0.1", 0), handler)
    server.lock, server.now, server.most, server.got = threading.Lock(), 0, 0, 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Threads(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128


@pytest.fixture
def site() -> Iterator[int]:
    with serving(_Site) as server:
        yield server.server_address[1]


@pytest.fixture
def lines() -> Iterator[Any]:
    with serving(_Lines, _Threads) as server:
        yield server


Inside = Callable[..., tuple[Outcome, str]]


@pytest.fixture
def within(inside: Inside) -> Inside:
    """`within(script, network)`: a Python script with SAY before it."""

    def run(script: str, network: tuple[str, ...], **fields: object) -> tuple[Outcome, str]:
        return inside(SAY + script, python=True, network=network, **fields)

    return run


@pytest.fixture
def shell(inside: Inside) -> Inside:
    """`shell(script, network)`: a shell script; the interpreter that the allow-list needs is there."""

    def run(script: str, network: tuple[str, ...], **fields: object) -> tuple[Outcome, str]:
        return inside("", python=True, network=network, **{"command": ("sh", "-c", script), **fields})

    return run


def test_three_ways_out(within: Inside, host: Host, site: int) -> None:
    host.resolve = lambda name, port: ["127.0.0.1"]
    script = f"""
print(urllib.request.urlopen("http://127.0.0.1:{site}/a?b").read().decode())
import http.client
tunnel = http.client.HTTPConnection("127.0.0.1", 3128)
tunnel.set_tunnel("Good.Test.", {site})
for path in ("/c", "/d"):  # a tunnel stays open
    tunnel.request("GET", path)
    print(tunnel.getresponse().read().decode())
tunnel.close()
name = b"good.test"
line = socket.create_connection(("127.0.0.1", 3128))
line.sendall(b"\\x05\\x01\\x00")
assert line.recv(2) == b"\\x05\\x00"
line.sendall(b"\\x05\\x01\\x00\\x03" + bytes([len(name)]) + name + ({site}).to_bytes(2, "big"))
assert line.recv(10)[:2] == b"\\x05\\x00"
line.sendall(b"GET /e HTTP/1.0\\r\\nHost: h\\r\\n\\r\\n")
print(line.makefile("rb").read().split(b"\\r\\n")[-1].decode())
"""
    outcome, text = within(script, (f"127.0.0.1:{site}", f"good.test:{site}"))
    assert text.splitlines() == [
        f"/a?b for 127.0.0.1:{site}", f"/c for Good.Test.:{site}", f"/d for Good.Test.:{site}", "/e for h",
    ]  # fmt: skip
    assert [(c.protocol, c.host, c.allowed, c.detail, c.address) for c in outcome.connections] == [
        ("http", "127.0.0.1", True, "", "127.0.0.1"),
        ("connect", "good.test", True, "", "127.0.0.1"),
        ("socks5", "good.test", True, "", "127.0.0.1"),
    ]
    assert all(c.sent > 20 and c.received > 20 and c.port == site for c in outcome.connections)


def test_curl_and_git_need_no_options(shell: Inside, site: int, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path / "work")]
    subprocess.run(["git", "init", "-q", "-b", "main", str(tmp_path / "work")], check=True)
    (tmp_path / "work/file").write_text("cloned\n")
    for words in (
        ["add", "."],
        ["commit", "-q", "-m", "x"],
        ["clone", "-q", "--bare", ".", str(tmp_path / "www/r.git")],
    ):
        subprocess.run([*git, *words], check=True)
    subprocess.run(["git", "-C", str(tmp_path / "www/r.git"), "update-server-info"], check=True)

    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Quiet."""

    with serving(functools.partial(Files, directory=str(tmp_path / "www"))) as server:
        port = server.server_address[1]
        script = f"git clone -q http://127.0.0.1:{port}/r.git r && cat r/file\n"
        if shutil.which("curl"):
            script += f"curl -sS http://127.0.0.1:{site}/curl; echo; curl -sS https://evil.test/ 2>&1 || true"
        _, text = shell(script, (f"127.0.0.1:{port}", f"127.0.0.1:{site}"))
    assert text.startswith("cloned\n")
    assert not shutil.which("curl") or (f"/curl for 127.0.0.1:{site}" in text and "403" in text)


REFUSED = [
    ("GET http://127.0.0.1:{other}/ HTTP/1.1", "403 Forbidden: 127.0.0.1:{other} is not in the allow-list"),
    ("GET http://localhost:{site}/ HTTP/1.1", "403 Forbidden: localhost:{site} is not in"),
    ("CONNECT evil.test:443 HTTP/1.1", "403 Forbidden: evil.test:443 is not in the allow-list"),
    ("CONNECT private.test:80 HTTP/1.1", "403 Forbidden: private.test resolves to 10.0.0.7, which is not public"),
    ("CONNECT loop.test:{site} HTTP/1.1", "403 Forbidden: loop.test resolves to ::1, which is not public"),
    ("CONNECT mixed.test:{site} HTTP/1.1", "403 Forbidden: mixed.test resolves to 169.254.169.254"),
    ("CONNECT unknown.test:80 HTTP/1.1", "502 Bad Gateway: unknown.test can't be resolved"),
    ("CONNECT 127.0.0.1:{closed} HTTP/1.1", "502 Bad Gateway: 127.0.0.1:{closed} can't be reached"),
    ("CONNECT 127.1:{site} HTTP/1.1", "400 Bad Request: the destination is not HOST:PORT"),
    ("CONNECT 2130706433:{site} HTTP/1.1", "400 Bad Request"),
    ("CONNECT 0x7f000001:{site} HTTP/1.1", "400 Bad Request"),
    ("CONNECT 127.0.0.1 HTTP/1.1", "400 Bad Request"),
    ("CONNECT 127.0.0.1:{site}\x00.evil:80 HTTP/1.1", "400 Bad Request"),
    ("GET https://127.0.0.1:{site}/ HTTP/1.1", "400 Bad Request: this is a proxy"),
    ("GET http://u:p@127.0.0.1:{site}/ HTTP/1.1", "400 Bad Request"),
    ("GET / HTTP/1.1", "400 Bad Request: this is a proxy"),
    ("GET http://127.0.0.1:{site}/ HTTP/2", "400 Bad Request: not an HTTP/1 request"),
    ("GET http://127.0.0.1:{site}/ HTTP/1.1\r\nBad header", "400 Bad Request: a header line can't be parsed"),
    ("GET http://127.0.0.1:{site}/ HTTP/1.1\r\nX: a\r\n folded", "400 Bad Request: a header line can't be parsed"),
    ("\x04\x01", "400 Bad Request: SOCKS4 is not spoken here"),
    ("\x80\xff\x00 rubbish", "400 Bad Request"),
]


def test_everything_else_is_refused_and_recorded(within: Inside, host: Host, site: int) -> None:
    asked = []

    def resolve(name: str, port: int) -> list[str]:
        asked.append(name)
        known = {"private.test": ["10.0.0.7"], "loop.test": ["::1"], "mixed.test": ["169.254.169.254", "0.0.0.0"]}
        if name not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return known[name]

    host.resolve = resolve
    with socket.socket() as unused, serving(_Site) as elsewhere:
        unused.bind(("127.0.0.1", 0))
        ports = {"site": site, "other": elsewhere.server_address[1], "closed": unused.getsockname()[1]}
        words = [line.format(**ports) for line, _ in REFUSED]
        script = f"for words in {words!r}: print(status(words.encode('latin-1') + b'\\r\\n\\r\\n'))"
        names = ("private.test:80", "unknown.test:80", f"loop.test:{site}", f"mixed.test:{site}")
        network = (f"127.0.0.1:{site}", *names, f"127.0.0.1:{ports['closed']}")
        outcome, text = within(script, network)
    for line, (_, expected) in zip(text.splitlines(), REFUSED, strict=True):
        assert line.startswith("HTTP/1.1 " + expected.format(**ports)), line
    assert sorted(asked) == sorted(name.split(":")[0] for name in names)  # never another name
    assert len(outcome.connections) == len(REFUSED)
    reached = [c for c in outcome.connections if c.address]
    assert [c.port for c in reached] == [ports["closed"]]
    assert all(c.detail for c in outcome.connections) and not any(c.received for c in outcome.connections)


def test_socks_refusals(within: Inside, site: int) -> None:
    script = f"""
def socks(*messages):
    with socket.create_connection(("127.0.0.1", 3128), timeout=20) as line:
        replies = []
        for message in messages:
            line.sendall(message)
            replies.append(line.recv(64).hex())
        return replies
hello, port = b"\\x05\\x01\\x00", ({site}).to_bytes(2, "big")
print(socks(hello, b"\\x05\\x01\\x00\\x01\\x7f\\0\\0\\1" + (1).to_bytes(2, "big"))[1][:4])   # another port
print(socks(hello, b"\\x05\\x01\\x00\\x03\\x04evil" + port)[1][:4])
print(socks(hello, b"\\x05\\x02\\x00\\x01\\x7f\\0\\0\\1" + port)[1][:4])  # BIND
print(socks(hello, b"\\x05\\x03\\x00\\x01\\x7f\\0\\0\\1" + port)[1][:4])  # UDP
print(socks(hello, b"\\x05\\x01\\x00\\x09" + port)[1][:4])
print(socks(b"\\x05\\x01\\x02"))                                      # only with a password
print(socks(hello, b"\\x05\\x01\\x00\\x04" + b"\\0" * 10 + b"\\xff\\xff\\x7f\\0\\0\\1" + port)[1][:4])  # allowed
"""
    outcome, text = within(script, (f"127.0.0.1:{site}",))
    assert text.splitlines() == ["0502", "0502", "0501", "0501", "0501", "['05ff']", "0500"]
    assert [c.allowed for c in outcome.connections] == [False] * 6 + [True]


def test_only_the_proxy_is_there(within: Inside, site: int) -> None:
    script = f"""
def error(action):
    try:
        action()
    except OSError as failed:
        return type(failed).__name__
    return "NO ERROR"
print(error(lambda: socket.create_connection(("127.0.0.1", {site}), 5)))
print(error(lambda: socket.create_connection(("192.0.2.1", 53), 5)))
print(error(lambda: socket.create_connection(("169.254.169.254", 80), 5)))
print(error(lambda: socket.create_connection(("::1", {site}), 5)))
print(error(lambda: socket.getaddrinfo("localhost.evil.test", 80)))
print(error(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))))
print(error(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)))
print([name for _, name in socket.if_nameindex()])
print(sorted(os.listdir("/proc/self/fd")))
print([f for f in os.listdir("/run") if f != "sia-gate.py"])
print(os.environ["NO_PROXY"], os.environ["https_proxy"], os.environ["ALL_PROXY"])
"""
    outcome, text = within(script, ("example.org:443",))
    assert text.splitlines() == [
        "ConnectionRefusedError", "OSError", "OSError", "ConnectionRefusedError", "gaierror", "OSError",
        "PermissionError", "['lo']", "['0', '1', '2', '3']", "[]",
        "localhost,127.0.0.1,::1 http://127.0.0.1:3128 http://127.0.0.1:3128",
    ]  # fmt: skip
    assert outcome.connections == ()


@pytest.mark.parametrize("network", ["none", ()])
def test_without_a_list_there_is_nothing(inside: Inside, network: Any) -> None:
    script = """import os, socket
print([n for n in os.environ if 'proxy' in n.lower()], socket.socket().connect_ex(('127.0.0.1', 3128)))"""
    outcome, text = inside(script, python=True, network=network)
    assert text == "[] 111\n" and outcome.connections == ()


def test_the_answer_that_was_checked_is_used(within: Inside, host: Host, site: int) -> None:
    """Rebinding: a name that answers differently every time is asked once for each connection."""
    answers = iter([["127.0.0.1"], ["10.0.0.1"], ["10.0.0.1", "127.0.0.1"]])
    host.resolve = lambda name, port: next(answers)
    script = f"for _ in range(3): print(status(b'GET http://good.test:{site}/ HTTP/1.0\\r\\n\\r\\n'))"
    outcome, text = within(script, (f"good.test:{site}", f"127.0.0.1:{site}"))
    assert [line.split(" ")[1] for line in text.splitlines()] == ["200", "403", "200"]
    assert [c.address for c in outcome.connections] == ["127.0.0.1", "", "127.0.0.1"]


def test_a_second_request_stays_with_the_first_destination(within: Inside, site: int) -> None:
    """What follows in the same connection goes to the same allowed server, and that one is told to close."""
    two = f"GET http://127.0.0.1:{site}/1 HTTP/1.1\\r\\nHost: evil.test\\r\\nConnection: keep-alive\\r\\n\\r\\n"
    two += "GET http://evil.test/2 HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n"
    outcome, text = within(f"print(ask(b'{two}').decode())", (f"127.0.0.1:{site}",))
    assert f"/1 for 127.0.0.1:{site}" in text and "evil" not in text
    assert [(c.host, c.allowed) for c in outcome.connections] == [("127.0.0.1", True)]


def test_slow_requests_give_up_their_place(within: Inside, site: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(proxy, "AT_ONCE", 8)
    script = f"""
held = [socket.create_connection(("127.0.0.1", 3128), 20) for _ in range(16)]
for line in held[:8]:
    line.sendall(b"GET ")
start = time.monotonic()
print(status(b"GET http://127.0.0.1:{site}/ HTTP/1.0\\r\\n\\r\\n"))
print(time.monotonic() - start > 0.5)
print(held[0].recv(100).split(b"\\r\\n")[0].decode())
"""
    outcome, text = within(script, (f"127.0.0.1:{site}",))
    assert text.splitlines() == ["HTTP/1.1 200 OK", "True", "HTTP/1.1 408 Request Timeout: no request within 1 s"]
    assert sum("no request within" in c.detail for c in outcome.connections) >= 8


@pytest.mark.parametrize("head", ["b'GET http://127.0.0.1/' + b'a' * 10**6", "b'A' * 10**6", "b'\\r\\n' * 10**5"])
def test_endless_heads_are_cut(within: Inside, head: str) -> None:
    outcome, text = within(f"print(ask({head})[:30])", ("127.0.0.1:1",))
    assert "400 Bad Request" in text or "reset" in text
    assert len(outcome.connections) == 1 and not outcome.connections[0].allowed


def test_many_connections_wait_for_their_turn(within: Inside, lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "AT_ONCE", 8)
    port = lines.server_address[1]
    script = f"""
import threading
done = []
def one():
    with socket.create_connection(("127.0.0.1", 3128), 30) as line:
        line.sendall(b"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\nhello")
        line.shutdown(socket.SHUT_WR)
        done.append(line.makefile("rb").read()[-1:])
threads = [threading.Thread(target=one) for _ in range(100)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(done), set(done))
"""
    outcome, text = within(script, (f"127.0.0.1:{port}",))
    assert text == "100 {b'5'}\n"
    assert 0 < lines.most <= 9 and len(outcome.connections) == 100  # 9: it may count one that is just leaving


def test_the_record_has_a_bound(within: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "KEPT", 5)
    outcome, _ = within("for _ in range(12): ask(b'CONNECT evil.test:1 HTTP/1.1\\r\\n\\r\\n')", ("good.test:1",))
    assert (len(outcome.connections), outcome.connections_dropped) == (5, 7)


def test_a_flood_is_paced_and_takes_no_memory(within: Inside, lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "BYTES_PER_SECOND", 40 << 20)
    port, size = lines.server_address[1], 120 << 20
    script = f"""
line = socket.create_connection(("127.0.0.1", 3128), 60)
line.sendall(b"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\n")
line.recv(100)
start, block = time.monotonic(), b"x" * (1 << 20)
for _ in range({size >> 20}): line.sendall(block)
line.shutdown(socket.SHUT_WR)
print(int(line.recv(100)) == {size}, time.monotonic() - start > 1.5)
"""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome, text = within(script, (f"127.0.0.1:{port}",))
    assert text == "True True\n"
    assert outcome.connections[0].sent == size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32_000  # kB


def test_everything_ends_with_the_sandbox(host: Host, lines: Any) -> None:
    port = lines.server_address[1]
    script = f"{SAY}\nask(b'CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\nx')"
    spec = SandboxSpec(
        (sys.executable, "-I", "-c", script), "/tmp", network=(f"127.0.0.1:{port}",), python=Path(sys.executable)
    )
    before = threading.active_count() - lines.now
    with Sandbox.start(host, spec) as sandbox:
        _until(lambda: lines.now == 1)
        start = time.monotonic()
        sandbox.kill()
        took = time.monotonic() - start
        outcome = sandbox.wait()
    _until(lambda: lines.now == 0)
    assert outcome is not None and outcome.signal == 9 and took < 10
    assert [c.detail for c in outcome.connections] in (["still open when the sandbox ended"], [""])
    _until(lambda: threading.active_count() <= before + 2)  # the watchdogs


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_launches_leave_nothing(within: Inside, site: int) -> None:
    def run() -> None:
        within(f"status(b'GET http://127.0.0.1:{site}/ HTTP/1.0\\r\\n\\r\\n')", (f"127.0.0.1:{site}",))

    run()
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        run()
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert "sandbox-proxy" not in {thread.name for thread in threading.enumerate()}
    with socket.socket() as probe:
        probe.settimeout(1)
        assert probe.connect_ex(("127.0.0.1", gate.PORT)) != 0  # the listener was never one of ours


def test_exit_codes_and_signals_are_the_commands_own(shell: Inside) -> None:
    for script, expected in (
        ("exit 7", (7, None)),
        ("kill -PIPE $$", (None, 13)),
        ("yes | head -1; exit 0", (0, None)),
    ):
        outcome, _ = shell(script, ("a.test:1",))
        assert (outcome.exit_code, outcome.signal) == expected
    outcome, text = shell("", ("a.test:1",), command=("nosuch",))
    assert outcome.exit_code == 127 and "nosuch" in text


@pytest.mark.bad_input
def test_bad_input_allow_list_of_a_sandbox(inside: Inside, shell: Inside) -> None:
    with pytest.raises(CannotIsolate) as caught:
        shell("true", ("example.org",))
    print(caught.value.render())
    with pytest.raises(CannotIsolate, match="needs a Python inside"):
        inside("true", network=("example.org:80",))


def test_limits_still_end_it(within: Inside) -> None:
    outcome, _ = within("time.sleep(60)", ("a.test:1",), limits=Limits(seconds=1))
    assert outcome.limit == "seconds"


@pytest.mark.parametrize("kind", ["pipe", "directory", "unix", "datagram", "elsewhere", "not listening", "nothing"])
def test_only_the_listener_that_was_agreed_is_served(kind: str) -> None:
    """What comes out of a sandbox in its place is closed, and serves nobody."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    way_out = gate.Gate(("a.test:1",), lambda name, port: [])
    with contextlib.ExitStack() as stack:
        inside = stack.enter_context(socket.socket(fileno=os.dup(way_out.connect())))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        datagram = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        elsewhere = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        idle = stack.enter_context(socket.socket())
        null = stack.enter_context(open(os.devnull))
        directory = os.open("/", os.O_PATH)
        stack.callback(os.close, directory)
        sent = {"pipe": null, "unix": unix, "datagram": datagram, "elsewhere": elsewhere, "not listening": idle}
        number = directory if kind == "directory" else sent[kind].fileno() if kind in sent else None
        socket.send_fds(inside, [b"l"], [] if number is None else [number, number])
        way_out.open()
        way_out._thread.join(10)
        assert not way_out._thread.is_alive()
    way_out.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_command_line_takes_an_allow_list(site: int, tmp_path: Path) -> None:
    def sia(*words: str) -> subprocess.CompletedProcess[str]:
        root = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-m", "orchestrator", "sandbox", "run", *words]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
    words = ("--network", f"allow:127.0.0.1:{site}", "--", "python", "-c", fetch)
    found = sia(*words, f"http://127.0.0.1:{site}/cli")
    assert (found.returncode, found.stdout) == (0, f"/cli for 127.0.0.1:{site}\n"), found.stderr
    assert f"@ 127.0.0.1:{site} " in found.stderr and "bytes sent" in found.stderr
    found = sia("--json", *words, "http://evil.test/")
    record = json.loads(found.stdout.splitlines()[-1])
    assert [(c["host"], c["allowed"]) for c in record["connections"]] == [("evil.test", False)]
    for wrong in (["host", "allow:a.test:1"], ["a.test:1"], ["allow:a.test"]):
        found = sia(*(word for value in wrong for word in ("--network", value)), "--", "true")
        assert found.returncode in (2, 78) and "fix:" in found.stderr
