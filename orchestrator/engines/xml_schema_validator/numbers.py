"""Numbers in ranges as automata: which decimal numerals are below or above a bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from orchestrator.engines.xml_schema_validator.automaton import Automaton, explore
from orchestrator.engines.xml_schema_validator.errors import Unsupported

MAX_DIGITS = 40  # of a bound


@dataclass(frozen=True)
class _Read:
    """What has been read of a numeral, compared with the bound's magnitude."""

    signed: bool = False  # a sign or a digit was read
    negative: bool = False
    zero: bool = True
    whole: bool = True  # before the point
    count: int = 0  # significant digits of the part, as far as they matter
    order: int = 0  # -1, 0, 1: smaller, equal so far, larger


def compared(bound: Decimal, orders: frozenset[int]) -> Automaton:
    """Numerals (`-?digits.digits`) whose order relative to `bound` (-1, 0, 1) is one of `orders`."""
    sign, digits, exponent = bound.as_tuple()
    if not isinstance(exponent, int) or len(digits) + abs(exponent) > MAX_DIGITS:
        raise Unsupported("bound", f"{bound} (at most {MAX_DIGITS} digits)")
    numeral = format(abs(bound), "f")
    whole, _, part = numeral.partition(".")
    whole, part = whole.lstrip("0"), part.rstrip("0")
    magnitude_zero = not whole and not part

    def after(read: _Read, character: str) -> _Read | None:
        if character in "+-":
            return None if read.signed else replace(read, signed=True, negative=character == "-")
        if character == ".":
            return replace(read, whole=False, count=0, order=_settled(read)) if read.whole and read.signed else None
        read = replace(read, signed=True, zero=read.zero and character == "0")
        if read.whole:
            return _whole_digit(read, character)
        if read.order == 0:
            other = part[read.count] if read.count < len(part) else "0"
            order = (character > other) - (character < other)
            return replace(read, order=order, count=0 if order else min(read.count + 1, len(part)))
        return read

    def _whole_digit(read: _Read, character: str) -> _Read:
        if read.count == 0 and character == "0":
            return read
        if read.count >= len(whole):
            return replace(read, count=len(whole) + 1, order=1)
        order = read.order or (character > whole[read.count]) - (character < whole[read.count])
        return replace(read, count=read.count + 1, order=order)

    def _settled(read: _Read) -> int:
        """The order after the last digit before the point."""
        return -1 if read.count < len(whole) else read.order

    def accepts(read: _Read) -> bool:
        order = _settled(read) if read.whole else read.order
        rest = 0 if read.whole else read.count
        if order == 0 and rest < len(part):
            order = -1
        return read.signed and _signed_order(read, order) in orders

    def _signed_order(read: _Read, order: int) -> int:
        if read.zero:
            return 0 if magnitude_zero else (1 if sign else -1)
        if read.negative != bool(sign):
            return -1 if read.negative else 1
        return -order if read.negative else order

    def moves(read: _Read) -> list[tuple[int, int, _Read]]:
        found = ((character, after(read, character)) for character in "+-.0123456789")
        return [(ord(character), ord(character), state) for character, state in found if state is not None]

    return explore(_Read(), moves, accepts)
