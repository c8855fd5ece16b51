"""What engines share about guided answers: the guide that fits a request, or why there is none."""

from __future__ import annotations

import sys

from orchestrator.answer_checker import checker
from orchestrator.engines.xml_schema_validator import Guide, Unsupported, guide

_NOTES = 100  # different lines in the log


class Guides:
    """Guides for requests. Thread-safe. `name` begins the lines in the log; `cdata` False: without CDATA sections."""

    def __init__(self, name: str, *, cdata: bool = True) -> None:
        self._name, self._cdata = name, cdata
        self._noted: set[str] = set()

    def of(self, schema: str, prefix: str) -> tuple[Guide | None, str | None]:
        """The guide of a schema (its text) for an answer with this prefix, or why there is none: answer unguided.

        Neither without a schema: then nothing was to be guided.
        """
        if not schema:
            return None, None
        try:
            found = guide(schema.encode(), cdata=self._cdata)
            if found.automaton.walk(prefix) is None and not self._cdata:
                found = guide(schema.encode())  # a prefix with CDATA
        except Unsupported as error:
            self.note(f"answers are unguided: {error}")
            return None, str(error)
        if found.automaton.walk(prefix) is None:
            self.note(f"answers are unguided: none that is valid begins with {prefix[:60]!r}")
            return None, "no valid answer begins with the given prefix"
        return found, None

    def fault(self, schema: str, answer: str) -> str | None:
        """Why a whole answer is not valid; None if it is. Checked apart from the grammar, as any answer is."""
        return checker(schema.encode()).check(answer).error

    def note(self, text: str) -> None:
        """One line in the engine's log, once."""
        if text not in self._noted and len(self._noted) < _NOTES:
            self._noted.add(text)
            print(f"{self._name}: {text}", file=sys.stderr, flush=True)
