"""XPath expressions, lets and templates of a policy, compiled once."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lxml import etree

from orchestrator.protocol import escape

NAMESPACES = {"re": "http://exslt.org/regular-expressions"}
BUILT_IN = ("system", "schema", "prefix", "malformed", "seed")
FORMATS = ("", "cdata", "sh", "shcdata", "raw")
_LITERAL = re.compile(r"'[^']*'|\"[^\"]*\"")
_VARIABLE = re.compile(r"\$([A-Za-z_][\w.-]*)")
_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)(?::(\w*))?\}|[{}]")


class Wrong(Exception):
    """A part of the policy can't be used; the text says why."""


class Expression:
    """An XPath expression with the lets that it uses."""

    def __init__(self, text: str, scope: Mapping[str, Let]) -> None:
        self.text = text
        names = set(_VARIABLE.findall(_LITERAL.sub("", text)))
        if unknown := sorted(name for name in names if name not in scope and name not in BUILT_IN):
            known = ", ".join(f"${name}" for name in (*BUILT_IN, *scope))
            raise Wrong(f"${unknown[0]} is not defined here (known: {known})")
        self.built_in = tuple(name for name in names if name not in scope)
        self.lets = tuple((name, scope[name]) for name in names if name in scope)
        try:
            self._xpath = etree.XPath(text, namespaces=NAMESPACES, smart_strings=False)
            self._xpath(etree.Element("context"), **{name: 0 if name == "seed" else "" for name in names})
        except (etree.XPathError, TypeError, ValueError) as error:
            raise Wrong(f"{text!r} is not valid XPath: {error}") from None

    def evaluate(self, values: Values) -> Any:
        """The XPath result over the request's context document."""
        if not self.lets and not self.built_in:
            return self._xpath(values.root)
        variables: dict[str, Any] = {name: values.built_in[name] for name in self.built_in}
        for name, let in self.lets:
            variables[name] = values.of(let)
        return self._xpath(values.root, **variables)


@dataclass(frozen=True)
class Pick:
    """The regular expression of a let: which match, which group, what stands between several, what if none."""

    pattern: re.Pattern[str]
    group: int | str
    which: str
    join: str
    default: str

    def of(self, text: str) -> str:
        """What the expression picks out of a text."""
        if self.which == "first":
            match = self.pattern.search(text)
            found = [match] if match else []
        else:
            found = list(self.pattern.finditer(text))
        if not found:
            return self.default
        picked = [match[self.group] or "" for match in (found[-1:] if self.which == "last" else found)]
        return self.join.join(picked)


class Let:
    """A named string. Compared by identity: one per place in the policy."""

    def __init__(self, source: Expression, pick: Pick | None) -> None:
        self.source, self.pick = source, pick

    def compute(self, values: Values) -> str:
        """Its value for one request."""
        text = as_text(self.source.evaluate(values))
        return self.pick.of(text) if self.pick else text


class Values:
    """The values of one request: its context document, the built-in variables, and lets computed on demand."""

    def __init__(self, root: etree._Element, built_in: Mapping[str, Any]) -> None:
        self.root, self.built_in = root, built_in
        self._known: dict[Let, str] = {}

    def of(self, let: Let) -> str:
        """A let's value, computed once."""
        value = self._known.get(let)
        if value is None:
            value = self._known[let] = let.compute(self)
        return value


def as_text(result: Any) -> str:
    """An XPath result as a string, like XPath's own `string()`."""
    if isinstance(result, list):
        if not result:
            return ""
        first = result[0]
        return "".join(map(str, first.itertext())) if isinstance(first, etree._Element) else str(first)
    if isinstance(result, bool):
        return "true" if result else "false"
    if isinstance(result, float):
        return str(int(result)) if result.is_integer() else str(result)
    return str(result)


def as_truth(result: Any) -> bool:
    """An XPath result as a boolean, like XPath's own `boolean()`."""
    return result == result and bool(result)  # NaN is false


class Template:
    """An answer with placeholders."""

    def __init__(self, text: str, scope: Mapping[str, Let]) -> None:
        self._parts: list[str | tuple[Let, str]] = []
        at = 0
        for match in _BRACES.finditer(text):
            self._parts.append(text[at : match.start()])
            at = match.end()
            if match[0] in ("{{", "}}"):
                self._parts.append(match[0][0])
            elif match[1] is None:
                near = text[max(0, match.start() - 15) : match.start() + 15]
                raise Wrong(f"single {match[0]!r} near {near!r}: write {match[0] * 2} for a brace")
            elif match[1] not in scope:
                known = ", ".join(scope) or "none"
                raise Wrong(f"{match[0]} names no let (known: {known}); write {{{{ and }}}} for braces")
            elif (match[2] or "") not in FORMATS:
                raise Wrong(f"{match[0]}: unknown format (known: {', '.join(filter(None, FORMATS))})")
            else:
                self._parts.append((scope[match[1]], match[2] or ""))
        self._parts.append(text[at:])

    def fill(self, values: Values) -> str:
        """The answer for one request."""
        return "".join(part if isinstance(part, str) else _format(values.of(part[0]), part[1]) for part in self._parts)


def _format(value: str, how: str) -> str:
    if how.startswith("sh"):
        value = shlex.quote(value)
    if how in ("cdata", "shcdata"):
        return value.replace("]]>", "]]]]><![CDATA[>")
    if how == "raw":
        return value
    return escape(value).replace('"', "&quot;")
