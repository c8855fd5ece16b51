"""The way out of a sandbox with an allow-list: a proxy for HTTP, CONNECT and SOCKS5 outside of it.

It accepts on a socket that lies in the sandbox's own network namespace (sandbox/gate.py). Names are resolved here, and
only those of allowed destinations; the address that was checked is the one that is connected to, so that an answer
that changes between two look-ups gains nothing. Everything that comes from inside has a bound: connections at a time,
new ones a second, the time and size of a request, bytes a second. One thread per sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
import time
from dataclasses import dataclass

from sandbox.allowlist import AllowList, is_address
from sandbox.connections import Connection, ConnectionLog
from sandbox.lookup import Resolve
from sandbox.proxy_requests import BadRequest, Request, read_request, reply

AT_ONCE = 64  # connections; others wait in the listener's backlog
NEW_PER_SECOND = 200
REQUEST_SECONDS = 10.0  # to say what is wanted
LOOKUP_SECONDS = 15.0
LOOKUPS_AT_ONCE = 4
CONNECT_SECONDS = 15.0  # for each address
ADDRESSES = 4  # that are tried
DRAIN_SECONDS = 1.0  # a refusal is lost if unread bytes are still there at close
BYTES_PER_SECOND = 64 << 20
CHUNK = 1 << 16


class _Refused(Exception):
    def __init__(self, status: int, reason: str, *, answered: bool = False) -> None:
        self.status, self.reason, self.answered = status, reason, answered
        super().__init__(reason)


@dataclass
class _Pace:
    """At most so many units a second, with up to one second's worth at once."""

    per_second: float
    left: float = 0.0
    last: float = 0.0

    async def take(self, amount: float) -> None:
        now = time.monotonic()
        self.left = min(self.per_second, self.left + (now - self.last) * self.per_second) - amount
        self.last = now
        if self.left < 0:
            await asyncio.sleep(-self.left / self.per_second)


@dataclass
class _Attempt:
    """A connection while it lasts."""

    began: float
    protocol: str = "?"
    host: str = ""
    port: int = 0
    allowed: bool = False
    detail: str = ""
    address: str = ""
    sent: int = 0
    received: int = 0

    def record(self, seconds: float) -> Connection:
        return Connection(
            time=round(self.began, 3),
            protocol=self.protocol,
            host=self.host,
            port=self.port,
            allowed=self.allowed,
            detail=self.detail,
            address=self.address,
            sent=self.sent,
            received=self.received,
            seconds=round(seconds, 3),
        )


class Proxy:
    """Serves one listening socket until it is told to stop. `run` is called in a thread of its own."""

    def __init__(self, allowed: AllowList, resolve: Resolve, log: ConnectionLog) -> None:
        self.allowed, self.resolve, self.log = allowed, resolve, log
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, listener: socket.socket) -> None:
        """Serve; returns after `stop`, when every connection is closed and recorded. Closes `listener`."""
        with listener, contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._main(listener))

    def stop(self) -> None:
        """End it, from any thread, before or after `run` has begun. Does not wait."""
        with self._lock:
            self._stopped = True
            if self._loop is not None and self._serving is not None:
                with contextlib.suppress(RuntimeError):  # it has ended by itself
                    self._loop.call_soon_threadsafe(self._serving.cancel)

    async def _main(self, listener: socket.socket) -> None:
        with self._lock:
            self._loop, self._serving = asyncio.get_running_loop(), asyncio.current_task()
            if self._stopped:
                return
        listener.setblocking(False)
        self._lookups = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._bytes, new = _Pace(BYTES_PER_SECOND), _Pace(NEW_PER_SECOND)
        slots = asyncio.Semaphore(AT_ONCE)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                await slots.acquire()
                await new.take(1)
                inside, _ = await self._loop.sock_accept(listener)
                task = asyncio.create_task(self._serve(inside))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: slots.release())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, inside: socket.socket) -> None:
        """One connection, from the request to the record."""
        attempt, start = _Attempt(time.time()), time.monotonic()
        inside.setblocking(False)
        try:
            with inside:
                await self._converse(inside, attempt)
        except EOFError:
            return  # opened and closed without a word: nothing was asked
        except OSError as error:
            attempt.detail = attempt.detail or f"broken off ({error.strerror or type(error).__name__})"
        except asyncio.CancelledError:
            attempt.detail = attempt.detail or "still open when the sandbox ended"
        self.log.add(attempt.record(time.monotonic() - start))

    async def _converse(self, inside: socket.socket, attempt: _Attempt) -> None:
        loop = asyncio.get_running_loop()
        try:
            request = await self._request(inside, attempt)
            outside = await self._open(request, attempt)
        except _Refused as refused:
            attempt.detail = refused.reason
            if not refused.answered:
                await loop.sock_sendall(inside, reply(attempt.protocol, refused.status, refused.reason))
            await _drain(inside)
            return
        with outside:
            if request.protocol != "http":
                await loop.sock_sendall(inside, reply(request.protocol, 200, ""))
            if request.first:
                await loop.sock_sendall(outside, request.first)
                attempt.sent += len(request.first)
            await self._relay(inside, outside, attempt)

    async def _request(self, inside: socket.socket, attempt: _Attempt) -> Request:
        loop = asyncio.get_running_loop()

        async def receive(size: int) -> bytes:
            data = await loop.sock_recv(inside, size)
            if attempt.protocol == "?" and data[:1] == b"\x05":
                attempt.protocol = "socks5"  # a refusal must be in its words
            elif attempt.protocol == "?" and data:
                attempt.protocol = "http"
            return data

        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await read_request(receive, lambda data: loop.sock_sendall(inside, data))
        except TimeoutError:
            raise _Refused(408, f"no request within {REQUEST_SECONDS:g} s") from None
        except BadRequest as error:
            raise _Refused(400, str(error), answered=error.answered) from None
        attempt.protocol, attempt.host, attempt.port = request.protocol, request.host, request.port
        refusal = self.allowed.refusal(request.host, request.port)
        if refusal:
            raise _Refused(403, refusal)
        return request

    async def _open(self, request: Request, attempt: _Attempt) -> socket.socket:
        """Connect to an address that was checked. Refuses if there is none, or nobody answers."""
        refusal = failure = ""
        for address in (await self._addresses(request))[:ADDRESSES]:
            reason = self.allowed.address_refusal(request.host, request.port, address)
            if reason:
                refusal = refusal or reason
                continue
            attempt.allowed, attempt.address = True, address
            try:
                return await _connect(address, request.port)
            except (OSError, TimeoutError) as error:
                text = getattr(error, "strerror", None) or f"no answer within {CONNECT_SECONDS:g} s"
                failure = f"{request.host}:{request.port} can't be reached at {address} ({text})"
        if failure or not refusal:
            raise _Refused(502, failure or f"{request.host} has no address")
        raise _Refused(403, refusal)

    async def _addresses(self, request: Request) -> list[str]:
        if is_address(request.host):
            return [request.host]
        async with self._lookups:
            try:
                async with asyncio.timeout(LOOKUP_SECONDS):
                    return await _in_thread(self.resolve, request.host, request.port)
            except TimeoutError:
                raise _Refused(504, f"{request.host} was not resolved within {LOOKUP_SECONDS:g} s") from None
            except OSError as error:
                raise _Refused(502, f"{request.host} can't be resolved ({error.strerror or error})") from None

    async def _relay(self, inside: socket.socket, outside: socket.socket, attempt: _Attempt) -> None:
        async def copy(source: socket.socket, target: socket.socket, *, outward: bool) -> None:
            loop = asyncio.get_running_loop()
            while data := await loop.sock_recv(source, CHUNK):
                await loop.sock_sendall(target, data)
                if outward:
                    attempt.sent += len(data)
                else:
                    attempt.received += len(data)
                await self._bytes.take(len(data))
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_quietly(copy(inside, outside, outward=True))),
                group.create_task(_quietly(copy(outside, inside, outward=False))),
            ]
            for done in asyncio.as_completed(tasks):
                if not await done:  # one way is broken: so is the other
                    for task in tasks:
                        task.cancel()
                    break


async def _quietly(copying: object) -> bool:
    """Whether a copy ended with the end of the stream, not with an error."""
    try:
        await copying  # type: ignore[misc]
    except OSError:
        return False
    return True


async def _connect(address: str, port: int) -> socket.socket:
    family = socket.AF_INET if ipaddress.ip_address(address).version == 4 else socket.AF_INET6
    outside = socket.socket(family, socket.SOCK_STREAM)
    try:
        outside.setblocking(False)
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(outside, (address, port))
    except BaseException:
        outside.close()
        raise
    return outside


async def _drain(inside: socket.socket) -> None:
    """Let the other side read our refusal before the connection is reset."""
    with contextlib.suppress(OSError, TimeoutError):
        inside.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(DRAIN_SECONDS):
            for _ in range(64):
                if not await asyncio.get_running_loop().sock_recv(inside, CHUNK):
                    return


async def _in_thread(look_up: Resolve, host: str, port: int) -> list[str]:
    """Resolve in a daemon thread: the loop's own executor would hold up the end until a stuck resolver answers."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[str]] = loop.create_future()

    def settle(result: list[str] | None, error: OSError | None) -> None:
        if not future.done():
            if error is not None or result is None:
                future.set_exception(error or OSError("no answer"))
            else:
                future.set_result(result)

    def work() -> None:
        result, error = None, None
        try:
            result = look_up(host, port)
        except OSError as failed:
            error = failed
        except UnicodeError:
            error = OSError("not a name that can be resolved")
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="resolve", daemon=True).start()
    return await future
