"""Which network destinations a sandbox may reach: `host:port` entries, and what an address may be."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from sandbox.errors import CannotIsolate

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
NUMBER = re.compile(r"\d+|0x[0-9a-f]*")  # as a last label: resolvers would read the whole as an address
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
SHOWN = 8  # entries named in a refusal


def normal_host(text: str) -> str:
    """A host name or address in its one canonical form: lower case, no dot at the end, no brackets.

    IPv4 addresses inside IPv6 notation become IPv4. Raises ValueError for everything else, such as `0x7f.1`, wildcards
    and interface scopes: an address has to be written out.
    """
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        if "%" in host:
            raise ValueError("an address with an interface")
        address = ipaddress.ip_address(host)
    except ValueError:
        labels = host.lower().removesuffix(".").split(".")
        if len(host) > 253 or not all(map(LABEL.fullmatch, labels)) or NUMBER.fullmatch(labels[-1]):
            raise ValueError("neither a host name nor an address written out") from None
        return ".".join(labels)
    return str(_plain(address))


def split(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` in canonical form. Raises ValueError with what is wrong."""
    host, colon, number = text.rpartition(":")
    if not colon or not re.fullmatch(r"[1-9]\d{0,4}", number, re.ASCII) or int(number) > 65535:
        raise ValueError("no port from 1 to 65535")
    if ":" in host and not host.startswith("["):
        raise ValueError("an IPv6 address needs brackets")
    return normal_host(host), int(number)


def is_address(host: str) -> bool:
    """Whether a canonical host is an address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_public(text: str) -> bool:
    """Whether an address is one of the public internet: not loopback, private, link-local, shared, reserved…, and no
    IPv6 form in which such an IPv4 address is embedded."""
    try:
        address = _plain(ipaddress.ip_address(text))
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address in NAT64:
        return is_public(str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
    if address.is_multicast or address.is_reserved or address.is_unspecified or not address.is_global:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    if address.is_site_local or address in LOCAL_NAT64:
        return False
    embedded = (address.sixtofour, *(address.teredo or ()))
    return all(inner is None or is_public(str(inner)) for inner in embedded)


def _plain(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


class AllowList:
    """The entries of one sandbox. Names match names and addresses match addresses; nothing is resolved here."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises CannotIsolate for an entry that is not `host:port`."""
        self.entries: dict[tuple[str, int], None] = {}
        for entry in entries:
            try:
                self.entries[split(entry)] = None
            except ValueError as error:
                fix = "write host:port, such as example.org:443 or 10.0.0.5:8080 (no wildcards)"
                raise CannotIsolate(f"not an entry for an allow-list: {error}", where=repr(entry), fix=fix) from None

    def refusal(self, host: str, port: int) -> str:
        """Why this canonical destination is not allowed; "" if it is."""
        if (host, port) in self.entries:
            return ""
        shown = ", ".join(f"{name}:{number}" for name, number in list(self.entries)[:SHOWN])
        more = len(self.entries) - SHOWN
        return f"{host}:{port} is not in the allow-list ({shown}{f' and {more} more' if more > 0 else ''})"

    def address_refusal(self, host: str, port: int, address: str) -> str:
        """Why an allowed host may not be reached at the address that it resolved to; "" if it may."""
        if is_address(host) or is_public(address):
            return ""
        try:
            if (normal_host(address), port) in self.entries:
                return ""
        except ValueError:
            pass
        return f"{host} resolves to {address}, which is not public; it needs an entry of its own"

    @property
    def hosts(self) -> frozenset[str]:
        """Every host that an entry names."""
        return frozenset(host for host, _ in self.entries)
