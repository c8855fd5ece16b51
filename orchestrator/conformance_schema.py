"""Which actions a candidate's schema has: what it does not have is not asked. The schema is untrusted input."""

from __future__ import annotations

from lxml import etree

from orchestrator.answer_process import XSD, schema_root

MAX_SCHEMA = 1 << 20  # bytes; ours has two thousand
_DEFINITIONS = (f"{XSD}complexType", f"{XSD}attributeGroup")
_REFERENCES = ("type", "base", "ref")  # how elements, types and attributes name what they are made of


class Actions:
    """The elements that an answer can be, and their attributes: those that the schema declares at its top.

    A schema that the broker would not take (no XML, a DOCTYPE, parts in other files, no schema at all) leaves answers
    unguided, so it rules nothing out: such a candidate is asked everything.
    """

    def __init__(self, schema: bytes) -> None:
        self._elements: dict[str, etree._Element] | None = None
        self._definitions: dict[str, etree._Element] = {}
        root = _root(schema)
        if root is not None:
            self._elements = {_name(element, "name"): element for element in root.iterfind(f"{XSD}element")}
            self._definitions = {_name(found, "name"): found for found in root.iterchildren(*_DEFINITIONS)}

    def has(self, action: str, attribute: str = "") -> bool:
        """Whether there is this action, and whether it may have this attribute."""
        if self._elements is None:
            return True
        element = self._elements.get(action)
        return element is not None and (not attribute or self._takes(element, attribute))

    def _takes(self, element: etree._Element, attribute: str) -> bool:
        """Looked for in the element's own type and in what that is made of; not in elements inside."""
        pending, seen = [element], set[str]()
        while pending:
            part = pending.pop()
            if part.tag == f"{XSD}anyAttribute":
                return True
            if part.tag == f"{XSD}attribute":
                named = attribute in (_name(part, "name"), _name(part, "ref"))
                if named and part.get("use") != "prohibited":
                    return True
                continue
            for name in {_name(part, reference) for reference in _REFERENCES} - seen:
                seen.add(name)
                pending += [self._definitions[name]] if name in self._definitions else []
            pending += [child for child in part if child.tag != f"{XSD}element"]
        return False


def _root(schema: bytes) -> etree._Element | None:
    """The schema's root, if the broker could take it. Only parsed, never compiled: that is what can take for ever."""
    if len(schema) > MAX_SCHEMA:
        return None
    try:
        root = schema_root(schema)
    except (etree.XMLSyntaxError, ValueError):
        return None
    return root if root.tag == f"{XSD}schema" else None


def _name(element: etree._Element, attribute: str) -> str:
    """A name as XML Schema reads it: white space around it is nothing, a prefix is only its namespace."""
    return element.get(attribute, "").strip().rpartition(":")[2]
