"""Whether a server keeps to grammars: to a schema's, and to any at all."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

_KEPT = 1000  # schemas

MINIMAL = 'root ::= "a"'  # no server that takes grammars fails at this one
MINIMAL_WISH = "Write the word no."  # what an answer begins with if the grammar was ignored: no "a"
NONE_AT_ALL = "the server takes no grammars"


class Grammars:
    """What is known of one server. Thread-safe.

    A schema of one candidate must not cost the others their guide: a refusal is remembered for the schema, and for all
    only if the server does not keep to a minimal grammar either.
    """

    def __init__(self) -> None:
        self.works: bool | None = None  # whether it keeps to any; None: nobody has asked yet
        self._refused: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def refusal(self, schema: str) -> str | None:
        """Why there is no use in giving this schema's grammar to the server; None: give it."""
        if self.works is False:
            return NONE_AT_ALL
        with self._lock:
            return self._refused.get(_name(schema))

    def refused(self, schema: str, why: str) -> None:
        """Remember that the server refused a schema's grammar, or did not keep to it."""
        with self._lock:
            self._refused[_name(schema)] = why
            while len(self._refused) > _KEPT:
                self._refused.popitem(last=False)


def follows_minimal(text: str) -> bool | None:
    """Whether an answer under the minimal grammar kept to it; None if it says nothing."""
    return None if not text.strip() else text.strip() == "a"


def _name(schema: str) -> str:
    return hashlib.sha256(schema.encode("utf-8", "surrogatepass")).hexdigest()
