"""A sandbox with an allow-list reaches what it names, through the proxy, and nothing else: real servers on loopback."""

from __future__ import annotations

import functools
import http.server
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sandbox.host import Host
from tests.sandbox import network_kit
from tests.sandbox.network_kit import Inside, Site, serving

site, within, shell = network_kit.site, network_kit.within, network_kit.shell
pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]


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
    with socket.socket() as unused, serving(Site) as elsewhere:
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
