"""From a candidate's schema to a guide for its answers. Compiled once, in a limited process; kept by its hash."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from orchestrator.engines.xml_schema_validator.automaton import Automaton
from orchestrator.engines.xml_schema_validator.closure import Closure, kept
from orchestrator.engines.xml_schema_validator.errors import Unsupported
from orchestrator.engines.xml_schema_validator.grammar import gbnf

PROGRAM = "orchestrator.engines.xml_schema_validator.process"
_PATIENCE = 20.0  # seconds of wall clock for a process that may use 4 s of processor time
_KEPT = 32  # schemas
_GRAMMARS = 32  # of one schema, one for each place where prefixes end


@dataclass(frozen=True)
class Guide:
    """What answers may be under one schema. Thread-safe."""

    automaton: Automaton
    closure: Closure
    _grammars: OrderedDict[int, str] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def grammar(self, prefix: str = "") -> str | None:
        """GBNF of what may follow a prefix; None if no valid answer begins with it."""
        state = self.automaton.walk(prefix)
        if state is None:
            return None
        with self._lock:
            if state not in self._grammars:
                self._grammars[state] = gbnf(self.automaton, state)
                while len(self._grammars) > _GRAMMARS:
                    self._grammars.popitem(last=False)
            return self._grammars[state]

    def ending(self, prefix: str, begun: bytes) -> tuple[str, str] | None:
        """An answer that was cut off as (its whole characters, what ends it). None if it broke the grammar."""
        whole = kept(begun)
        state = self.automaton.walk(prefix + whole)
        return None if state is None else (whole, self.closure.of(state))


_known: OrderedDict[str, Guide | Unsupported] = OrderedDict()
_lock = threading.Lock()


def guide(schema: bytes, *, cdata: bool = True) -> Guide:
    """The guide of a schema. Raises Unsupported with the construct's name; both are remembered."""
    name = f"{hashlib.sha256(schema).hexdigest()} {cdata}"
    with _lock:  # a second caller waits for the first one's work
        if name not in _known:
            try:
                _known[name] = _guide(compile_schema(schema, cdata=cdata))
            except Unsupported as error:
                _known[name] = error
            while len(_known) > _KEPT:
                _known.popitem(last=False)
        _known.move_to_end(name)
        found = _known[name]
    if isinstance(found, Unsupported):
        raise found
    return found


def _guide(automaton: Automaton) -> Guide:
    if automaton.empty:
        raise Unsupported("xs:schema", "no answer is valid")
    return Guide(automaton, Closure(automaton))


def compile_schema(schema: bytes, *, cdata: bool = True) -> Automaton:
    """The automaton of a schema that is not trusted, compiled in a limited process. Raises Unsupported."""
    argv = [sys.executable, "-I", "-m", PROGRAM, *([] if cdata else ["--no-cdata"])]
    try:
        ended = subprocess.run(argv, input=schema, capture_output=True, timeout=_PATIENCE, check=False, cwd="/")
        result = json.loads(ended.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        raise Unsupported("size", "compiling takes too much time or memory") from None
    if "refused" in result:
        construct = str(result["refused"])
        raise Unsupported(construct, str(result["why"]).removeprefix(f"{construct}: ").removeprefix(construct))
    edges = tuple(tuple((low, high, target) for low, high, target in state) for state in result["edges"])
    return Automaton(edges, frozenset(result["accepting"]))
