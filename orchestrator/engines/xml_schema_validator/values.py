"""Simple types as automata over their values, before anything is escaped.

An automaton may stand for fewer values than the type has, never for more: numbers have at most 18 digits and no
exponent, INF or NaN; values whose white space is collapsed are written without any around them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache, reduce

from orchestrator.engines.xml_schema_validator import charsets
from orchestrator.engines.xml_schema_validator.automaton import (
    Automaton,
    automaton,
    chars,
    choice,
    intersection,
    repeat,
    text,
)
from orchestrator.engines.xml_schema_validator.errors import Unsupported
from orchestrator.engines.xml_schema_validator.patterns import pattern

MAX_TEXT = 2_000  # characters, of a maxLength
MAX_VALUES = 1_000  # of an enumeration


@dataclass(frozen=True)
class Simple:
    """A simple type: `kind` is `text`, `number` or `other`; `free` means any text, with nothing to check."""

    values: Automaton
    kind: str
    free: bool = False


_ANY = chars(charsets.XML)
_BITS = {"long": 64, "int": 32, "short": 16, "byte": 8}
_INTEGERS: dict[str, tuple[int | None, int | None]] = {
    "integer": (None, None),
    "nonNegativeInteger": (0, None),
    "positiveInteger": (1, None),
    "nonPositiveInteger": (None, 0),
    "negativeInteger": (None, -1),
    **{name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in _BITS.items()},
    **{f"unsigned{name.capitalize()}": (0, 2**bits - 1) for name, bits in _BITS.items()},
}
_TEXTS = {
    "normalizedString": r"[^\t\n\r]*",
    "token": r"([^ \t\n\r]+( [^ \t\n\r]+)*)?",
    "NMTOKEN": r"\c+",
    "Name": r"\i\c*",
    "NCName": r"[A-Za-z_][-A-Za-z0-9._]*",
    "language": r"[a-zA-Z]{1,8}(-[a-zA-Z0-9]{1,8})*",
}


@cache
def builtin(name: str) -> Simple:
    """A type of XSD itself, by its local name. Raises Unsupported."""
    if name in ("string", "anySimpleType"):
        return Simple(automaton(repeat(_ANY, 0, None)), "text", free=True)
    if name in _TEXTS:
        return Simple(automaton(pattern(_TEXTS[name])), "text")
    if name == "boolean":
        return Simple(automaton(choice(*map(text, ("true", "false", "1", "0")))), "other")
    if name in ("decimal", "float", "double"):
        return Simple(automaton(pattern(r"[+\-]?[0-9]{1,18}(\.[0-9]{1,9})?")), "number")
    if name in _INTEGERS:
        low, high = _INTEGERS[name]
        found = automaton(pattern(r"[+\-]?[0-9]{1,18}"))
        if low is not None:
            found = intersection(found, bounded("minInclusive", str(low)))
        if high is not None:
            found = intersection(found, bounded("maxInclusive", str(high)))
        return Simple(found, "number")
    raise Unsupported(f"xs:{name}")


def bounded(facet: str, value: str) -> Automaton:
    """The numerals within one bound."""
    from orchestrator.engines.xml_schema_validator.numbers import compared

    allowed = {"minInclusive": (0, 1), "minExclusive": (1,), "maxInclusive": (-1, 0), "maxExclusive": (-1,)}[facet]
    try:
        bound = Decimal(value.strip())
    except InvalidOperation:
        raise Unsupported(f"xs:{facet}", f"{value[:40]!r} is not a number") from None
    return compared(bound, frozenset(allowed))


def restricted(base: Simple, facets: Iterable[tuple[str, str]]) -> Simple:
    """A type with facets `(local name, value)` on top. Raises Unsupported, also if no value is left."""
    given = list(facets)
    parts = [*_alternatives(given), *_lengths(base, given)]
    for name, value in given:
        if name in ("minInclusive", "minExclusive", "maxInclusive", "maxExclusive"):
            if base.kind != "number":
                raise Unsupported(f"xs:{name}", "on a type that is not a number")
            parts.append(bounded(name, value))
        elif name in ("totalDigits", "fractionDigits"):
            parts.append(_digits(name, value))
        elif name == "whiteSpace" and base.kind == "text":
            parts += _spaces(value)
    if not parts:
        return base
    values = reduce(intersection, parts, base.values)
    if values.empty:
        raise Unsupported("xs:restriction", "no value is left that could be written")
    return Simple(values, base.kind)


def joined(members: Iterable[Simple]) -> Simple:
    """A union."""
    return Simple(automaton(choice(*(member.values.embedded() for member in members))), "other")


def exactly(value: str) -> Simple:
    """One value."""
    return Simple(automaton(text(value)), "other")


def _alternatives(facets: list[tuple[str, str]]) -> list[Automaton]:
    """Patterns of one restriction are alternatives, and so are enumerated values."""
    patterns = [value for name, value in facets if name == "pattern"]
    values = [value for name, value in facets if name == "enumeration"]
    if len(patterns) + len(values) > MAX_VALUES:
        raise Unsupported("xs:enumeration", f"more than {MAX_VALUES} values")
    found = [automaton(choice(*map(pattern, patterns)))] if patterns else []
    return [*found, automaton(choice(*map(text, values)))] if values else found


def _lengths(base: Simple, facets: list[tuple[str, str]]) -> list[Automaton]:
    given = {name: _count(name, value) for name, value in facets if name in ("length", "minLength", "maxLength")}
    if not given:
        return []
    if base.kind != "text":
        raise Unsupported(f"xs:{next(iter(given))}", "on a type that is not text")
    least = given.get("length", given.get("minLength", 0))
    most = given.get("length", given.get("maxLength"))
    if most is not None and most < least:
        raise Unsupported("xs:maxLength", "less than xs:minLength")
    return [automaton(repeat(_ANY, least, most))]


def _spaces(value: str) -> list[Automaton]:
    """What `xs:whiteSpace` asks of a text: nothing, or to be one that replacing or collapsing does not change."""
    if value == "preserve":
        return []
    name = {"replace": "normalizedString", "collapse": "token"}.get(value)
    if name is None:
        raise Unsupported("xs:whiteSpace", f"{value[:40]!r}")
    return [builtin(name).values]


def _digits(name: str, value: str) -> Automaton:
    count = min(_count(f"xs:{name}", value), 18)
    if name == "fractionDigits":
        return automaton(pattern(rf"[+\-]?[0-9]+(\.[0-9]{{1,{count}}})?" if count else r"[+\-]?[0-9]+"))
    whole = [rf"[0-9]{{1,{n}}}(\.[0-9]{{1,{count - n}}})?" for n in range(1, count)]
    return automaton(pattern(rf"[+\-]?({'|'.join([*whole, rf'[0-9]{{1,{count}}}'])})"))


def _count(name: str, value: str) -> int:
    digits = value.strip()
    if not digits.isascii() or not digits.isdigit() or len(digits) > 6 or int(digits) > MAX_TEXT:
        raise Unsupported(f"xs:{name.removeprefix('xs:')}", f"{digits[:20]} (at most {MAX_TEXT})")
    return int(digits)
