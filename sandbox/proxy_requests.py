"""What a program inside says to the proxy: HTTP CONNECT, plain HTTP, or SOCKS5, all hostile input with a bound."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox.allowlist import normal_host, split

HEAD_LIMIT = 16 * 1024  # bytes of an HTTP request's head
Receive = Callable[[int], Awaitable[bytes]]
Send = Callable[[bytes], Awaitable[None]]
HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"upgrade", b"host"}
ABSOLUTE = re.compile(rb"http://([^/?#@\s]+)([/?][^\s#]*)?", re.IGNORECASE)
TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
SOCKS_REPLY = b"\x00\x01\x00\x00\x00\x00\x00\x00"  # reserved, and an IPv4 address that says nothing
SOCKS_CODES = {200: 0, 400: 1, 403: 2, 408: 1, 502: 4, 504: 4}
PHRASES = {400: "Bad Request", 403: "Forbidden", 408: "Request Timeout", 502: "Bad Gateway", 504: "Gateway Timeout"}


class BadRequest(Exception):
    """It is not a request that the proxy understands; says why. `answered`: the client has been told already."""

    def __init__(self, reason: str, *, answered: bool = False) -> None:
        self.answered = answered
        super().__init__(reason)


@dataclass(frozen=True)
class Request:
    """A wish to be connected. `first`: bytes for the destination that were read, or made, already."""

    protocol: str  # connect | http | socks5
    host: str
    port: int
    first: bytes = b""


async def read_request(receive: Receive, send: Send) -> Request:
    """Read one request, whichever of the protocols it is in. Raises BadRequest, or EOFError if nothing was said."""
    start = await receive(1)
    if not start:
        raise EOFError
    if start == b"\x05":
        return await _socks(receive, send)
    if start == b"\x04":
        raise BadRequest("SOCKS4 is not spoken here: use SOCKS5 with names (socks5h) or HTTP")
    return _http(*await _head(start, receive))


async def _head(start: bytes, receive: Receive) -> tuple[bytes, bytes]:
    data = start
    while b"\r\n\r\n" not in data:
        if len(data) >= HEAD_LIMIT:
            raise BadRequest(f"the head of the request is longer than {HEAD_LIMIT} bytes")
        more = await receive(min(4096, HEAD_LIMIT - len(data)))
        if not more:
            raise BadRequest("the request was cut off")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _http(head: bytes, rest: bytes) -> Request:
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not TOKEN.fullmatch(words[0]) or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadRequest("not an HTTP/1 request")
    method, target, version = words
    if method == b"CONNECT":
        host, port = _destination(target)
        return Request("connect", host, port, rest)
    found = ABSOLUTE.fullmatch(target)
    if not found:
        raise BadRequest("this is a proxy: ask for http://HOST/…, or CONNECT HOST:PORT")
    authority = found[1]
    host, port = _destination(authority if re.search(rb":\d+$", authority) else authority + b":80")
    path = found[2] or b"/"
    kept = [line for line in lines if line.split(b":")[0].strip().lower() not in HOP_BY_HOP]
    if any(line[:1] in b" \t" or b":" not in line or b"\n" in line or b"\r" in line for line in kept):
        raise BadRequest("a header line can't be parsed")
    made = [
        b" ".join((method, path if path.startswith(b"/") else b"/" + path, version)),
        b"Host: " + authority,
        *kept,
        b"Connection: close",  # so that a second request can't hide behind the first
    ]
    return Request("http", host, port, b"\r\n".join(made) + b"\r\n\r\n" + rest)


def _destination(text: bytes) -> tuple[str, int]:
    try:
        return split(text.decode("ascii"))
    except ValueError as error:  # UnicodeDecodeError is one too
        reason = "not ASCII" if isinstance(error, UnicodeDecodeError) else error
        raise BadRequest(f"the destination is not HOST:PORT: {reason}") from None


async def _socks(receive: Receive, send: Send) -> Request:
    async def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = await receive(size - len(data))
            if not more:
                raise BadRequest("the request was cut off")
            data += more
        return data

    methods = await exactly((await exactly(1))[0])
    if 0 not in methods:
        await send(b"\x05\xff")
        raise BadRequest("SOCKS5 without a method that needs no password", answered=True)
    await send(b"\x05\x00")
    version, command, _, kind = await exactly(4)
    if version != 5 or kind not in (1, 3, 4):
        raise BadRequest("not a SOCKS5 request")
    if kind == 3:
        text = (await exactly((await exactly(1))[0])).decode("ascii", "replace")
    else:
        text = str(ipaddress.ip_address(await exactly(4 if kind == 1 else 16)))
    port = int.from_bytes(await exactly(2), "big")
    if command != 1:
        raise BadRequest("SOCKS5 can only connect here: no listening, no UDP")
    try:
        return Request("socks5", normal_host(text), port)
    except ValueError as error:
        raise BadRequest(f"the destination is {error}") from None


def reply(protocol: str, status: int, reason: str) -> bytes:
    """An answer in the protocol's words. 200 is only said to CONNECT and SOCKS5; `reason` explains another one."""
    if protocol == "socks5":
        return b"\x05" + bytes([SOCKS_CODES[status]]) + SOCKS_REPLY
    if status == 200:
        return b"HTTP/1.1 200 Connection established\r\n\r\n"
    line = re.sub(r"[^ -~]", "?", reason)  # also in the status line: many clients show nothing else
    body = f"{line}\n".encode()
    head = f"HTTP/1.1 {status} {PHRASES[status]}: {line}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body
