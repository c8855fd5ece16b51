"""Unix sockets of ours that an instance writes to take bytes, never descriptors (SCM_RIGHTS).

A receiver that gives no room for descriptors does not get them: the kernel drops them. But whoever drops the last
reference to a file also closes it, and that can take as long as its owner likes: a TCP socket with SO_LINGER and data
that nobody reads holds up the closing thread, which would be ours, for years. So the sender is refused (EPERM) where
the kernel can do that; elsewhere that thread is left behind (`InstanceEnd.abandon`).
"""

from __future__ import annotations

import contextlib
import socket

SO_PASSRIGHTS = 83  # Linux 6.16; the same on x86-64 and ARM64. Sockets that a listening one accepts have it too.


def refuse_descriptors(line: socket.socket) -> None:
    """Let the other side's sendmsg() fail when it sends descriptors, where this kernel knows how."""
    with contextlib.suppress(OSError):
        line.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
