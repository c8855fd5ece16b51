"""Sets of characters as sorted, disjoint, inclusive ranges of code points."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
# What XML 1.0 allows in a document, without the carriage return: a parser turns a raw one into a line feed.
XML: Ranges = ((0x9, 0xA), (0x20, 0xD7FF), (0xE000, 0xFFFD), (0x10000, LAST))
ASCII: Ranges = ((0x9, 0xA), (0x20, 0x7E))


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """All characters of the sets; adjacent ranges are joined."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(item for one in sets for item in one):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return tuple(joined)


def intersection(a: Ranges, b: Ranges) -> Ranges:
    """The characters that are in both sets."""
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            found.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def difference(a: Ranges, b: Ranges) -> Ranges:
    """The characters of `a` that are not in `b`."""
    gaps, at = [], 0
    for low, high in b:
        if at < low:
            gaps.append((at, low - 1))
        at = high + 1
    if at <= LAST:
        gaps.append((at, LAST))
    return intersection(a, tuple(gaps))


def of(text: str) -> Ranges:
    """The characters of a string."""
    return union((ord(c), ord(c)) for c in text)


def between(first: str, last: str) -> Ranges:
    """The characters from `first` to `last`."""
    return ((ord(first), ord(last)),)


def size(ranges: Ranges) -> int:
    """How many characters."""
    return sum(high - low + 1 for low, high in ranges)
