"""From a candidate's schema to a guide for its answers. Compiled once, in a limited process; kept by its hash."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.engines.xml_schema_validator.automaton import Automaton
from orchestrator.engines.xml_schema_validator.closure import Closure, kept
from orchestrator.engines.xml_schema_validator.errors import Unsupported
from orchestrator.engines.xml_schema_validator.grammar import gbnf

PROGRAM = Path(__file__).with_name("process.py")
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
    unwritten = ["-B"] if sys.dont_write_bytecode else []  # -I takes no such wish from the environment
    argv = [sys.executable, "-I", *unwritten, str(PROGRAM), *([] if cdata else ["--no-cdata"])]
    try:
        ended = subprocess.run(argv, input=schema, capture_output=True, timeout=_PATIENCE, check=False, cwd="/")
    except subprocess.TimeoutExpired:
        raise Unsupported("size", f"compiling takes more than {_PATIENCE:g} s") from None
    if ended.returncode:
        raise _died(ended.returncode, ended.stderr)
    result = json.loads(ended.stdout)
    if "refused" in result:
        raise Unsupported(str(result["refused"]), str(result["why"]))
    edges = tuple(tuple((low, high, target) for low, high, target in state) for state in result["edges"])
    return Automaton(edges, frozenset(result["accepting"]))


def _died(code: int, said: bytes) -> Unsupported:
    """Why the process has ended without a result: one of its limits, or a fault that is not the schema's."""
    if code == -signal.SIGVTALRM:
        return Unsupported("size", "compiling takes too much processor time")
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    last = "".join(c if c.isprintable() else "?" for c in lines[-1][:300]) if lines else "without a word"
    return Unsupported("process", f"compiling ended with {how}: {last}")
