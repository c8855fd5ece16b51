"""Which journal a person means: a trial or the main instance, each of which may have several (`ID~2` and so on)."""

from __future__ import annotations

import re

from orchestrator.errors import UsageError
from orchestrator.exchanges import ExchangeStore
from orchestrator.untrusted import one_line

_ATTEMPT = re.compile(r"(.*)~(\d+)")


def trial_of(journal: str) -> str:
    """The trial whose attempt a journal records: `c1t5~2` is of `c1t5`."""
    return match[1] if (match := _ATTEMPT.fullmatch(journal)) else journal


def find_journal(store: ExchangeStore, name: str) -> str:
    """The id of a journal: the newest attempt of a trial (id or its unique beginning), or `main`'s newest one.

    `ID~1` is the first attempt, `ID~2` the second. Raises UsageError if there is none, or if several begin like that.
    """
    if name == "main":
        query = "SELECT id FROM journal WHERE json_extract(meta, '$.kind') = 'main' ORDER BY created DESC LIMIT 1"
        found = _ids(store, query)
        if not found:
            raise UsageError("the main instance has no journal yet", fix="start it with `sia supervise`")
        return found[0]
    if _ATTEMPT.fullmatch(name):
        meant = _ids(store, "SELECT id FROM journal WHERE id IN (?, ?)", name, name.removesuffix("~1"))
        if not meant:
            raise _none(name)
        return max(meant, key=len)
    ids = _ids(store, "SELECT id FROM journal WHERE substr(id, 1, length(?)) = ? ORDER BY created, id", name, name)
    trials = {trial_of(id) for id in ids}
    meant = [name] if name in trials else sorted(trials) if name else []
    if len(meant) > 1:
        listed = ", ".join(meant[:8]) + (" …" if len(meant) > 8 else "")
        raise UsageError(f"{one_line(name, 60)!r} could be {listed}", fix="write more of the id")
    if not meant:
        raise _none(name)
    return next(id for id in reversed(ids) if trial_of(id) == meant[0])


def _ids(store: ExchangeStore, query: str, *values: str) -> list[str]:
    with store.lock:
        return [str(row["id"]) for row in store.heads.execute(query, values)]


def _none(name: str) -> UsageError:
    fix = "`sia campaign show ID --trials` names the trials; one that has just begun has no journal yet"
    return UsageError(f"no journal {one_line(name, 60)!r}", fix=fix)
