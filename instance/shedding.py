"""Room in a context that is too long: what is shown is shortened, what is kept never is.

The order: outputs of scripts and unusable answers are cut to 500 characters, the oldest entry first; then, oldest
first, outputs to 100 and the other texts to 200; then all texts of more than 60 characters go and the ids stay; at
last the oldest entries are not shown at all. The saved state holds everything in full; so do the logs, with what lies
beside them (instance/log.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from instance.entries import LEFT_OUT, Entry

WARN_AT = 80.0  # percent of the token limit from which the model is warned
WARN_AGAIN = 70.0  # percent below which a next warning is due
TARGETS = (85.0, 65.0, 45.0, 25.0, 0.0)  # percent to come down to, tried in turn when counting shows it was not enough
ANSWER_TOKENS, ANSWER_SHARE = 1024, 0.1  # room for the answer: tokens, but at most this share of the limit
NAMED = 5  # entries that a warning names


def most(limit: int) -> float:
    """Percent of a limit (tokens of prompt and answer) that a prompt may take, so that the answer has room."""
    return 100.0 - 100.0 * min(ANSWER_TOKENS / limit, ANSWER_SHARE)


def shed(entries: Sequence[Entry], characters: float) -> bool:
    """Shorten entries, oldest first, until at least `characters` are saved. False if nothing more could be saved."""
    saved = 0
    for level in range(1, LEFT_OUT + 1):
        for entry in entries[:-1] if level == LEFT_OUT else entries:
            if saved >= characters:
                return True
            if entry.shed < level:
                saved += _shorten(entry, level)
    return saved > 0


def show_all(entries: Sequence[Entry]) -> None:
    """Show every entry in full again."""
    for entry in entries:
        entry.shed = 0


def shown(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that are not left out."""
    return [entry for entry in entries if entry.shed < LEFT_OUT]


def full_warning(entries: Sequence[Entry]) -> str:
    """What a model is told when it comes near the limit."""
    return (
        f"The context is more than {WARN_AT:.0f} percent full. When no room is left for an answer, texts are shown "
        "shortened, the outputs of the oldest entries first. Write what matters into files, then delete entries. "
        f"The largest: {_largest(entries)}"
    )


def shed_notice(entries: Sequence[Entry]) -> str:
    """What a model is told when texts had to be shortened."""
    oldest = ", ".join(entry.id for entry in entries[:50])
    return (
        "The context left no room for an answer, so entries marked `shed` are shown shortened, the oldest outputs "
        "first, and very old ones may be missing, until entries are deleted. Nothing is lost: the iteration logs have "
        "all of it, and their directory `whole` what none of them shows in full. Keep what matters in files, then "
        f"delete entries. The oldest ids: {oldest}"
    )


def _shorten(entry: Entry, level: int) -> int:
    """Characters that are saved; an entry that would not become shorter stays as it is."""
    before, size = entry.shed, _size(entry)
    entry.shed = level
    saved = size - _size(entry)
    if saved <= 0:
        entry.shed = before
    return max(0, saved)


def _size(entry: Entry) -> int:
    return 0 if entry.shed >= LEFT_OUT else len(entry.context_xml())


def _largest(entries: Sequence[Entry]) -> str:
    largest = sorted(entries, key=_size, reverse=True)[:NAMED]
    return ", ".join(f"{entry.id} ({_size(entry):,} characters)" for entry in largest) or "none"
