"""A schema document as the automaton of the answers it allows.

What is read: global elements; complex types with simple content, or with sequence, choice and all; attributes; simple
types by restriction and union. An answer of the automaton is always valid, but not every valid answer is one of the
automaton: attributes come in the schema's order, between double quotes; elements of `xs:all` in the schema's order;
nothing stands between child elements; see `values` for numbers. Everything else is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from lxml import etree

from orchestrator.engines.xml_schema_validator import values
from orchestrator.engines.xml_schema_validator.automaton import (
    Automaton,
    Expression,
    automaton,
    choice,
    repeat,
    sequence,
    text,
)
from orchestrator.engines.xml_schema_validator.content import escaped, free_text
from orchestrator.engines.xml_schema_validator.errors import Unsupported
from orchestrator.engines.xml_schema_validator.values import Simple

XSD = "http://www.w3.org/2001/XMLSchema"
T = TypeVar("T")
MAX_DEPTH = 12  # elements and types within each other
MAX_OCCURS = 200
MAX_ROOTS = 200
_FACETS = frozenset(
    ("pattern", "enumeration", "length", "minLength", "maxLength", "whiteSpace", "totalDigits", "fractionDigits")
) | frozenset(("minInclusive", "minExclusive", "maxInclusive", "maxExclusive"))
_IGNORED = frozenset(("annotation", "anyAttribute"))  # an answer needs no attribute beyond the declared ones


def read(root: etree._Element, *, cdata: bool = True) -> Automaton:
    """The answers that a schema allows: any of its global elements as root. Raises Unsupported.

    `answer_process.compile_schema` must have accepted it. Without `cdata` no CDATA section is written.
    """
    return _Reader(root, cdata).answers()


class _Reader:
    def __init__(self, root: etree._Element, cdata: bool) -> None:
        if root.get("targetNamespace"):
            raise Unsupported("targetNamespace")
        self._cdata = cdata
        self._depth = 0
        self._named: dict[tuple[str, str], etree._Element] = {}
        self._simple: dict[str, Simple] = {}
        for child in _children(root):
            kind = _local(child)
            if kind not in ("element", "complexType", "simpleType", "attribute"):
                raise Unsupported(f"xs:{kind}")
            self._named[kind, child.get("name", "")] = child

    def answers(self) -> Automaton:
        roots = [element for (kind, _), element in self._named.items() if kind == "element"]
        if not roots or len(roots) > MAX_ROOTS:
            raise Unsupported("xs:element", f"{len(roots)} global elements, 1 to {MAX_ROOTS} are taken")
        return automaton(choice(*map(self._element, roots)))

    def _element(self, element: etree._Element) -> Expression:
        if (named := element.get("ref")) is not None:
            element = self._global("element", named)
        _only(element, {"name", "type", "minOccurs", "maxOccurs", "default", "fixed", "nillable", "form", "id"})
        inner = list(_children(element))
        for child in inner:
            if _local(child) not in ("complexType", "simpleType"):
                raise Unsupported(f"xs:{_local(child)}")  # xs:key, xs:unique, xs:alternative
        return self._nested(lambda: self._written(element, inner[0] if inner else None))

    def _written(self, element: etree._Element, inner: etree._Element | None) -> Expression:
        name, fixed = element.get("name", ""), element.get("fixed")
        attributes: list[Expression] = []
        if inner is None and element.get("type") is not None:
            inner = self._complex(element.get("type", ""))
        if inner is not None and _local(inner) == "complexType":
            content, attributes = self._complex_content(inner)
        elif inner is not None:
            content = self._text(self._simple_type(inner))
        elif element.get("type") is not None:
            content = self._text(self._type(element, element.get("type", "")))
        else:
            raise Unsupported("xs:anyType", f"element {name!r} has no type")
        if fixed is not None:
            content = self._text(values.exactly(fixed))
        head = sequence(text(f"<{name}"), *attributes)
        full = sequence(text(">"), content, text(f"</{name}>"))
        if automaton(content).edges == ((),):  # nothing can be in it
            return sequence(head, choice(text("/>"), full))
        return sequence(head, full)

    def _complex(self, name: str) -> etree._Element | None:
        """The global complex type of that name, if it is one."""
        return self._named.get(("complexType", name)) if ":" not in name else None

    def _complex_content(self, kind: etree._Element) -> tuple[Expression, list[Expression]]:
        _only(kind, {"name", "id", "mixed", "block", "final"})
        if kind.get("mixed") in ("true", "1"):
            raise Unsupported("mixed")
        content: Expression = sequence()
        attributes: list[Expression] = []
        for child in _children(kind):
            match _local(child):
                case "simpleContent":
                    content, attributes = self._simple_content(child)
                case "sequence" | "choice" | "all":
                    content = self._group(child)
                case "attribute":
                    attributes.append(self._attribute(child))
                case other:
                    raise Unsupported(f"xs:{other}")
        return content, attributes

    def _simple_content(self, kind: etree._Element) -> tuple[Expression, list[Expression]]:
        (extension,) = _children(kind)
        if _local(extension) != "extension":
            raise Unsupported(f"xs:{_local(extension)}", "in xs:simpleContent")
        base = extension.get("base", "")
        attributes: list[Expression] = []
        complex_base = self._complex(base)
        if complex_base is not None:
            content, inherited = self._nested(partial(self._complex_content, complex_base))
            attributes += inherited
        else:
            content = self._text(self._type(extension, base))
        for child in _children(extension):
            if _local(child) != "attribute":
                raise Unsupported(f"xs:{_local(child)}")
            attributes.append(self._attribute(child))
        return content, attributes

    def _group(self, group: etree._Element) -> Expression:
        parts = [self._particle(child) for child in _children(group)]
        joined = choice(*parts) if _local(group) == "choice" and parts else sequence(*parts)
        return repeat(joined, *_occurs(group))

    def _particle(self, child: etree._Element) -> Expression:
        match _local(child):
            case "element":
                return repeat(self._element(child), *_occurs(child))
            case "sequence" | "choice":
                return self._group(child)
            case other:
                raise Unsupported(f"xs:{other}")

    def _attribute(self, attribute: etree._Element) -> Expression:
        use, fixed = attribute.get("use", "optional"), attribute.get("fixed")
        if attribute.get("ref") is not None:
            attribute = self._global("attribute", attribute.get("ref", ""))
        _only(attribute, {"name", "type", "use", "default", "fixed", "form", "id"})
        if use == "prohibited":
            return sequence()
        fixed = fixed if fixed is not None else attribute.get("fixed")
        inner = next(_children(attribute), None)
        if fixed is not None:
            value = values.exactly(fixed)
        elif inner is not None:
            value = self._simple_type(inner)
        elif attribute.get("type") is None:
            value = values.builtin("string")
        else:
            value = self._type(attribute, attribute.get("type", ""))
        written = sequence(text(f' {attribute.get("name")}="'), escaped(value.values, attribute=True), text('"'))
        return written if use == "required" else repeat(written, 0, 1)

    def _text(self, simple: Simple) -> Expression:
        return free_text(self._cdata) if simple.free else escaped(simple.values, attribute=False)

    def _type(self, place: etree._Element, name: str) -> Simple:
        """A simple type by its name, as written at `place`."""
        prefix, _, local = name.strip().rpartition(":")
        if place.nsmap.get(prefix or None) == XSD:
            return values.builtin(local)
        if prefix or ("simpleType", local) not in self._named:
            raise Unsupported(f"type {name[:60]!r}")
        if local not in self._simple:
            self._simple[local] = self._nested(partial(self._simple_type, self._named["simpleType", local]))
        return self._simple[local]

    def _simple_type(self, kind: etree._Element) -> Simple:
        (child,) = _children(kind)
        match _local(child):
            case "restriction":
                return self._restriction(child)
            case "union":
                named = [self._type(child, name) for name in child.get("memberTypes", "").split()]
                return values.joined([*named, *map(self._simple_type, _children(child))])
            case other:
                raise Unsupported(f"xs:{other}")

    def _restriction(self, restriction: etree._Element) -> Simple:
        facets, inner = [], None
        for child in _children(restriction):
            name = _local(child)
            if name == "simpleType":
                inner = self._nested(partial(self._simple_type, child))
            elif name in _FACETS:
                facets.append((name, child.get("value", "")))
            else:
                raise Unsupported(f"xs:{name}")
        base = inner or self._nested(lambda: self._type(restriction, restriction.get("base", "")))
        return values.restricted(base, facets)

    def _global(self, kind: str, name: str) -> etree._Element:
        if (kind, name) not in self._named:
            raise Unsupported(f"ref {name[:60]!r}")
        return self._named[kind, name]

    def _nested(self, build: Callable[[], T]) -> T:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported("recursion", f"more than {MAX_DEPTH} elements or types within each other")
        try:
            return build()
        finally:
            self._depth -= 1


def _children(element: etree._Element) -> Iterator[etree._Element]:
    return (child for child in element if isinstance(child.tag, str) and _local(child) not in _IGNORED)


def _local(element: etree._Element) -> str:
    name = etree.QName(element)
    if name.namespace != XSD:
        raise Unsupported(f"<{name.localname[:60]}>", "not an element of XSD")
    return name.localname


def _only(element: etree._Element, allowed: set[str]) -> None:
    for name in element.attrib:
        if name not in allowed and not str(name).startswith("{"):
            raise Unsupported(str(name), f"on xs:{_local(element)}")  # abstract, substitutionGroup, …


def _occurs(element: etree._Element) -> tuple[int, int | None]:
    least, most = element.get("minOccurs", "1"), element.get("maxOccurs", "1")
    if not least.isdigit() or int(least) > MAX_OCCURS:
        raise Unsupported("minOccurs", f"{least[:20]} (at most {MAX_OCCURS})")
    if most == "unbounded":
        return int(least), None
    if not most.isdigit() or int(most) > MAX_OCCURS:
        raise Unsupported("maxOccurs", f"{most[:20]} (at most {MAX_OCCURS}, or unbounded)")
    return int(least), int(most)
