"""Sockets of every family, and every address that might answer."""

from __future__ import annotations

import fcntl
import socket
import struct

from tests.sandbox.escape.registry import Seen, attempt, context, system_call

NO_FAMILY = ("EAFNOSUPPORT",)
AWAY = ("ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "ENETDOWN", "EADDRNOTAVAIL")
FAMILIES = {
    "AX25": 3, "IPX": 4, "APPLETALK": 5, "X25": 9, "DECnet": 12, "KEY": 15, "PACKET": 17, "RDS": 21, "PPPOX": 24,
    "LLC": 26, "CAN": 29, "TIPC": 30, "BLUETOOTH": 31, "IUCV": 32, "PHONET": 35, "ALG": 38, "NFC": 39, "VSOCK": 40,
    "KCM": 41, "QIPCRTR": 42, "SMC": 43, "XDP": 44, "MCTP": 45,
}  # fmt: skip
for name, family in FAMILIES.items():
    attempt(f"socket: AF_{name}", *NO_FAMILY)(lambda family=family: system_call("socket", family, 1, 0))
for name in ("ALG", "VSOCK", "PACKET"):
    attempt(f"socket: AF_{name} with high bits", *NO_FAMILY)(
        lambda family=FAMILIES[name]: system_call("socket", family | 1 << 32, 1, 0)
    )
    attempt(f"socketpair: AF_{name}", *NO_FAMILY)(
        lambda family=FAMILIES[name]: system_call("socketpair", family, 1, 0, b"\0" * 8)
    )
attempt("socket: raw IPv4", "EPERM", "EACCES")(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("socket: raw IPv6", "EPERM", "EACCES")(lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58))
attempt("interfaces", "only lo")(lambda: Seen("only lo") if [n for _, n in socket.if_nameindex()] == ["lo"] else 0)


def _connect(host: str, port: int) -> object:
    with socket.create_connection((host, port), 3) as connection:
        return connection.getpeername()


for host, port in (
    ("169.254.169.254", 80), ("fd00:ec2::254", 80), ("100.100.100.200", 80), ("1.1.1.1", 53), ("10.0.0.1", 22),
    ("192.168.1.1", 80), ("172.17.0.1", 2375), ("2606:4700:4700::1111", 443), ("255.255.255.255", 9),
):  # fmt: skip
    attempt(f"connect to {host} port {port}", *AWAY, "EACCES", "EINVAL")(lambda h=host, p=port: _connect(h, p))
attempt("connect to the host's loopback", *AWAY)(lambda: _connect("127.0.0.1", context["port"]))
attempt("connect to the host's loopback, IPv6", *AWAY)(lambda: _connect("::1", context["port"]))
attempt("connect to the host's 0.0.0.0", *AWAY)(lambda: _connect("0.0.0.0", context["port"]))


@attempt("send a datagram out", *AWAY)
def _datagram() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        return sender.sendto(b"x", ("1.1.1.1", 53))


@attempt("multicast", *AWAY)
def _multicast() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        return sender.sendto(b"x", ("224.0.0.251", 5353))


@attempt("resolve a name", "no answer")
def _resolve() -> object:
    try:
        return socket.getaddrinfo("example.com", 80)
    except socket.gaierror:
        return Seen("no answer")


@attempt("connect to the host's abstract socket", "ECONNREFUSED")
def _abstract() -> object:
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect("\0" + context["abstract"])
        return ours.recv(10)


@attempt("connect to the host's socket file", "ENOENT", "EACCES", "ENOTDIR")
def _file() -> object:
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(context["unix"])
        return ours.recv(10)


def _netlink(kind: int, message: bytes) -> object:
    """Send one request that wants an acknowledgement; its error is ours."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, kind) as ours:
        ours.bind((0, 0))
        ours.sendto(message, (0, 0))
        answer = ours.recv(4096)
        code = -struct.unpack_from("i", answer, 16)[0]
        if code:
            raise OSError(code, "netlink")
        return "done"


def _request(kind: int, body: bytes) -> bytes:
    return struct.pack("IHHII", 16 + len(body), kind, 5 | 0x600, 1, 0) + body


attempt("netlink: a new interface", "EPERM")(lambda: _netlink(0, _request(16, b"\0" * 16)))
attempt("netlink: a new address", "EPERM")(lambda: _netlink(0, _request(20, struct.pack("BBBBI", 2, 8, 0, 0, 1))))
attempt("netlink: a new route", "EPERM")(lambda: _netlink(0, _request(24, b"\2" + b"\0" * 11)))
attempt("netlink: firewall rules", "EPERM", "EPROTONOSUPPORT")(lambda: _netlink(12, _request(10 << 8, b"\2\0\0\0")))
attempt("netlink: audit", "EPERM", "EPROTONOSUPPORT", "ECONNREFUSED")(lambda: _netlink(9, _request(1001, b"\0" * 40)))
attempt("take down lo", "EPERM")(lambda: _flags())
attempt("mark packets", "EPERM")(lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 36, 1))
attempt("a busy port below 1024", "EACCES", "EPERM")(lambda: socket.socket().bind(("127.0.0.1", 80)))


def _flags() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        return fcntl.ioctl(ours, 0x8914, struct.pack("16sH14x", b"lo", 0))
