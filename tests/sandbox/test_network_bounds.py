"""What the proxy of an allow-list lets itself be used for: time, places, memory; all of it ends with the sandbox."""

from __future__ import annotations

import gc
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox import connections, gate, proxy
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Limits, SandboxSpec
from tests.sandbox import network_kit
from tests.sandbox.network_kit import SAY, Inside

site, lines, within = network_kit.site, network_kit.lines, network_kit.within
pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]


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


def test_limits_still_end_it(within: Inside) -> None:
    outcome, _ = within("time.sleep(60)", ("a.test:1",), limits=Limits(seconds=1))
    assert outcome.limit == "seconds"
