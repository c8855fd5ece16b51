"""From an XML schema of actions to guided answers.

`guide(schema)` compiles a candidate's schema (untrusted: in a limited process, without imports, includes and entities)
to an automaton over characters. From it come:

- `Guide.grammar(prefix)`: a GBNF grammar of what may follow a prefix;
- `Guide.ending(prefix, begun)`: the shortest end of an answer that was cut off;
- `fuzz(automaton, seed)`: random valid answers;
- `TokenMasks`: which tokens may come next, for samplers that take masks.

What can't be compiled raises `Unsupported` with the construct's name; `reader` says what is read. For a person:
`python -m orchestrator.engines.xml_schema_validator SCHEMA.xsd [--prefix TEXT] [--fuzz COUNT | --close TEXT]`.
"""

from __future__ import annotations

from orchestrator.engines.xml_schema_validator.automaton import Automaton
from orchestrator.engines.xml_schema_validator.closure import Closure, fuzz, kept
from orchestrator.engines.xml_schema_validator.compiler import Guide, compile_schema, guide
from orchestrator.engines.xml_schema_validator.errors import Unsupported
from orchestrator.engines.xml_schema_validator.grammar import gbnf
from orchestrator.engines.xml_schema_validator.masks import Position, TokenMasks

__all__ = [
    "Automaton",
    "Closure",
    "Guide",
    "Position",
    "TokenMasks",
    "Unsupported",
    "compile_schema",
    "fuzz",
    "gbnf",
    "guide",
    "kept",
]
