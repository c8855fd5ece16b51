"""Half-open time intervals: (start, end) covers start <= t < end. Times are whole minutes of a day."""

Interval = tuple[int, int]


def merge(intervals: list[Interval]) -> list[Interval]:
    """The same times as sorted, separate intervals. Intervals that touch, like (1, 3) and (3, 5), become one."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def total(intervals: list[Interval]) -> int:
    """How many minutes are covered; what is covered twice counts once."""
    return sum(end - start for start, end in merge(intervals))


def clock(minute: int) -> str:
    """A minute of the day as people write it: 75 is 01:15."""
    return f"{minute // 60:02d}:{minute % 60:02d}"


def gaps(intervals: list[Interval], start: int, end: int) -> list[Interval]:
    """What is left free between start and end, sorted."""
    free: list[Interval] = []
    here = start
    for first, last in merge(intervals):
        if first > here:
            free.append((here, first))
        here = max(here, last)
    return [(max(a, start), min(b, end)) for a, b in free if a < end]


def describe(intervals: list[Interval]) -> str:
    """The merged intervals as text: 08:00-09:30, 11:00-12:00."""
    return ", ".join(f"{clock(start)}-{clock(end)}" for start, end in merge(intervals))
