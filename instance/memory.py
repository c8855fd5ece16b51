"""Working memory: the entries that make up the context, oldest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lxml import etree

from instance.entries import Entry, RepeatEntry, run_side_by_side
from instance.scripts import ScriptRunner

E = TypeVar("E", bound=Entry)


class WorkingMemory:
    """Entries by id, in the order in which they were added."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._entries: dict[str, Entry] = {}
        self._runner = runner

    def add_entry(self, entry: Entry) -> None:
        """Append an entry; ValueError if its id is taken."""
        if entry.id in self._entries:
            raise ValueError(f"there is an entry {entry.id} already")
        self._entries[entry.id] = entry

    def remove_entry(self, id: str) -> bool:
        """Take an entry out; False if there is none with this id."""
        entry = self._entries.pop(id, None)
        if entry is not None:
            entry.cleanup()
        return entry is not None

    def clear(self) -> None:
        """Take all entries out."""
        for id in list(self._entries):
            self.remove_entry(id)

    def get_entry(self, id: str) -> Entry | None:
        """The entry with this id."""
        return self._entries.get(id)

    def get_entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return list(self._entries.values())

    def get_entries_count(self) -> int:
        """How many there are."""
        return len(self._entries)

    def get_entries_by_type(self, type: type[E]) -> list[E]:
        """All entries of one class, oldest first."""
        return [entry for entry in self._entries.values() if isinstance(entry, type)]

    def update(self, before: Callable[[], object] | None = None) -> None:
        """Refresh every entry. Repeats run side by side; `before` is called when they are marked as running."""
        repeats = [entry for entry in self.get_entries_by_type(RepeatEntry) if not entry.held]
        for entry in repeats:
            entry.begin()
        if repeats and before is not None:
            before()
        if repeats:
            run_side_by_side(repeats, self._runner)

    def generate_context(self) -> list[etree._Element]:
        """All entries as elements."""
        return [entry.generate_context() for entry in self._entries.values()]
