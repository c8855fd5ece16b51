"""Is an answer exactly one core action? If not, why, in words that a model can act on."""

from __future__ import annotations

from lxml import etree

from instance.errors import StartError

ANSWER_MAX = 4_000_000  # characters; a longer answer is refused before it is parsed
_XSD = "{http://www.w3.org/2001/XMLSchema}"
_BOM = "\ufeff"


def strict_parser(*, huge: bool = False) -> etree.XMLParser:
    """A parser that expands no entity, loads nothing, and drops comments and processing instructions.

    `huge`: a single text may be longer than 10 MB.
    """
    return etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True, huge_tree=huge
    )


def tidy(answer: str) -> str:
    """An answer without the white space and the byte order mark around it."""
    return answer.strip().removeprefix(_BOM).strip()


class XMLValidator:
    """Checks answers against a schema (its text), which is compiled once."""

    def __init__(self, schema: str) -> None:
        try:
            self._root = etree.fromstring(schema.encode(), strict_parser())
            self._schema = etree.XMLSchema(self._root)
        except (etree.XMLSyntaxError, etree.XMLSchemaParseError) as error:
            raise StartError(f"the action schema can't be used: {error}") from error

    def get_valid_root_elements(self) -> set[str]:
        """The names of all actions."""
        return {str(element.get("name")) for element in self._root.findall(f"{_XSD}element")}

    def validate(self, xml: str) -> str | None:
        """None if `xml` is one valid action, else what is wrong with it. Never raises."""
        text = tidy(xml)
        if not text:
            return "The answer was empty. Answer with exactly one action."
        if len(text) > ANSWER_MAX:
            return f"The answer has {len(text)} characters; at most {ANSWER_MAX} are accepted."
        try:
            root = etree.fromstring(text.encode("utf-8", "surrogatepass"), strict_parser())
        except (etree.XMLSyntaxError, ValueError) as error:
            return self._explain_syntax(text, error)
        if root.getroottree().docinfo.doctype:  # type: ignore[union-attr]
            return "A DOCTYPE is not allowed. Answer with the action element alone."
        if self._schema.validate(root):
            return None
        return self._explain_schema(root)

    def _explain_syntax(self, text: str, error: Exception) -> str:
        from instance.wording import SYNTAX  # only when an answer is wrong: compiling its patterns delays the start

        message = (str(getattr(error, "msg", "")) or str(error)).partition("\n")[0]
        for pattern, words in SYNTAX:
            match = pattern.search(message)
            if match:
                return words.format(*match.groups(), actions=self._actions()) + _place(error, text)
        return f"The answer is not well-formed XML: {message}"

    def _explain_schema(self, root: etree._Element) -> str:
        from instance.wording import SCHEMA

        errors: list[etree._LogEntry] = list(self._schema.error_log)  # type: ignore[call-overload]
        for item in errors:
            for pattern, words in SCHEMA:
                match = pattern.search(item.message)
                if match:
                    return words.format(*match.groups(), actions=self._actions())
            return str(item.message)
        return f"<{root.tag}> is not a valid action."

    def _actions(self) -> str:
        return ", ".join(f"<{name}>" for name in sorted(self.get_valid_root_elements()))


def _place(error: Exception, text: str) -> str:
    line, column = getattr(error, "position", (0, 0))
    lines = text.splitlines()
    if not 0 < line <= len(lines):
        return ""
    near = lines[line - 1][max(0, column - 21) : column + 19].strip()
    return f" (line {line}, column {column}, near: {near})" if near else f" (line {line}, column {column})"
