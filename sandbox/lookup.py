"""How names become addresses, outside of every sandbox. `Host.resolve` is one of these; tests put another there."""

from __future__ import annotations

import socket
from collections.abc import Callable

Resolve = Callable[[str, int], list[str]]  # host, port → addresses, best first; raises OSError


def resolve(host: str, port: int) -> list[str]:
    """As this machine's resolver has it."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))
