"""The end of a stream whose writer may never stop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

MOST = 256 << 10  # bytes


class KeptEnd(bytearray):
    """Bytes of which only the last `MOST` stay."""

    def extend(self, data: Iterable[SupportsIndex]) -> None:
        """Take more; what does not fit any more goes at the front."""
        super().extend(data)
        del self[:-MOST]
