"""What keeps a schema from being compiled."""

from __future__ import annotations


class Unsupported(Exception):
    """The schema uses something that has no automaton here. `construct` is its name (`xs:any`, `maxLength`, `size`).

    Where it is not the schema that is at fault, the name is `fault` (a bug of the compiler) or `process` (it could not
    be run); `why` is the rest of the message.
    """

    def __init__(self, construct: str, why: str = "") -> None:
        super().__init__(f"{construct}: {why}" if why else construct)
        self.construct, self.why = construct, why
