"""Regular expressions of XSD (`xs:pattern`) as expressions of automata.

Unicode's categories differ between versions of it, so a class stands for fewer characters here than in the schema where
that is safe (`\\d` is 0 to 9), and is refused where it is not (`\\p{…}`).
"""

from __future__ import annotations

from orchestrator.engines.xml_schema_validator import charsets
from orchestrator.engines.xml_schema_validator.automaton import Expression, chars, choice, repeat, sequence
from orchestrator.engines.xml_schema_validator.charsets import Ranges
from orchestrator.engines.xml_schema_validator.errors import Unsupported

MAX_LENGTH = 2_000  # characters of a pattern
MAX_COUNT = 2_000  # of a quantifier
MAX_DEPTH = 30

_DIGITS = charsets.between("0", "9")
_LETTERS = charsets.union(charsets.between("a", "z"), charsets.between("A", "Z"))
_SPACE = charsets.of(" \t\n")
_EXACT = {"s": _SPACE, "S": charsets.difference(charsets.XML, _SPACE)}
_NARROW = {  # fewer characters than in the schema: not inside a negated class
    "d": _DIGITS,
    "D": charsets.difference(charsets.ASCII, _DIGITS),
    "w": charsets.union(_DIGITS, _LETTERS),
    "i": charsets.union(_LETTERS, charsets.of("_:")),
    "c": charsets.union(_LETTERS, _DIGITS, charsets.of("-._:")),
}
_SINGLE = {"n": "\n", "r": "\r", "t": "\t", **{c: c for c in "\\|.-^?*+{}()[]$"}}


def pattern(source: str) -> Expression:
    """The language of a pattern. Raises Unsupported."""
    if len(source) > MAX_LENGTH:
        raise Unsupported("xs:pattern", f"{len(source)} characters, at most {MAX_LENGTH} are taken")
    reader = _Reader(source)
    found = reader.alternatives(0)
    if reader.left:
        raise reader.fault("an unexpected )")
    return found


class _Reader:
    def __init__(self, source: str) -> None:
        self._source, self._at = source, 0

    @property
    def left(self) -> bool:
        return self._at < len(self._source)

    def fault(self, what: str) -> Unsupported:
        return Unsupported("xs:pattern", f"{what} at character {self._at + 1} of {self._source[:100]!r}")

    def alternatives(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise self.fault(f"more than {MAX_DEPTH} nested groups")
        branches = [self._branch(depth)]
        while self._take("|"):
            branches.append(self._branch(depth))
        return branches[0] if len(branches) == 1 else choice(*branches)

    def _branch(self, depth: int) -> Expression:
        pieces = []
        while self.left and self._peek() not in "|)":
            atom = self._atom(depth)
            least, most = self._quantifier()
            pieces.append(atom if (least, most) == (1, 1) else repeat(atom, least, most))
        return sequence(*pieces)

    def _atom(self, depth: int) -> Expression:
        if self._take("("):
            if self._peek() == "?":
                raise self.fault("(?")
            inner = self.alternatives(depth + 1)
            self._expect(")")
            return inner
        if self._take("["):
            return chars(self._class())
        if self._take("."):
            return chars(charsets.difference(charsets.XML, charsets.of("\n")))
        if self._take("\\"):
            return chars(self._escape()[0])
        character = self._next()
        if character in "*+?{}]":
            raise self.fault(f"an unexpected {character}")
        return chars(charsets.of(character))

    def _quantifier(self) -> tuple[int, int | None]:
        for sign, counts in (("?", (0, 1)), ("*", (0, None)), ("+", (1, None))):
            if self._take(sign):
                return counts
        if not self._take("{"):
            return 1, 1
        least = self._number()
        most: int | None = least
        if self._take(","):
            most = None if self._peek() == "}" else self._number()
        self._expect("}")
        if most is not None and most < least:
            raise self.fault("a quantifier that ends before it begins")
        return least, most

    def _class(self) -> Ranges:
        negated, narrow, found = self._take("^"), False, charsets.of("")
        first = True
        while first or self._peek() != "]":
            first = False
            if self._source.startswith("-[", self._at):
                raise self.fault("class subtraction")  # libxml2 reads it in a way of its own
            low, is_narrow = self._member()
            narrow |= is_narrow
            if self._range_follows() and charsets.size(low) == 1:
                self._at += 1
                high, _ = self._member()
                if charsets.size(high) != 1 or high[0][0] < low[0][0]:
                    raise self.fault("a range without an end")
                low = ((low[0][0], high[0][0]),)
            found = charsets.union(found, low)
        self._at += 1
        return self._closed(found, negated, narrow)

    def _range_follows(self) -> bool:
        return self._peek() == "-" and self._source[self._at + 1 : self._at + 2] not in ("]", "[", "")

    def _closed(self, found: Ranges, negated: bool, narrow: bool) -> Ranges:
        if not negated:
            return charsets.intersection(found, charsets.XML)
        if narrow:
            raise self.fault("a negated class with an escape such as \\d")
        return charsets.difference(charsets.XML, found)

    def _member(self) -> tuple[Ranges, bool]:
        if self._take("\\"):
            return self._escape()
        if self._peek() == "[":
            raise self.fault("an unescaped [ in a class")
        return charsets.of(self._next()), False

    def _escape(self) -> tuple[Ranges, bool]:
        name = self._next()
        if name in _SINGLE:
            return charsets.of(_SINGLE[name]), False
        if name in _EXACT:
            return _EXACT[name], False
        if name in _NARROW:
            return _NARROW[name], True
        raise self.fault(f"\\{name}")

    def _number(self) -> int:
        begin = self._at
        while self.left and self._peek() in "0123456789":
            self._at += 1
        digits = self._source[begin : self._at]
        if not digits or len(digits) > 6 or int(digits) > MAX_COUNT:
            raise self.fault(f"a quantifier of more than {MAX_COUNT}, or without a number")
        return int(digits)

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    def _next(self) -> str:
        if not self.left:
            raise self.fault("an unexpected end")
        self._at += 1
        return self._source[self._at - 1]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _expect(self, character: str) -> None:
        if not self._take(character):
            raise self.fault(f"a missing {character}")
