"""How much two texts share."""

from __future__ import annotations

from typing import AnyStr


def shared_beginning(left: AnyStr, right: AnyStr) -> int:
    """The length of the common beginning (characters or bytes). Slices are compared in C, one by one they are not."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low
