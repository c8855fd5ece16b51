"""Text of unknown origin made fit for XML 1.0, reversibly, and cut to a size."""

from __future__ import annotations

import re

# XML 1.0 forbids most C0 controls, lone surrogates, U+FFFE and U+FFFF. CR is allowed but every parser turns it into LF.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]|‹(?=U\\+[0-9A-F]{4,6}›)")
_SHOWN = re.compile("‹U\\+([0-9A-F]{4,6})›")
_ESCAPE = 8  # characters that stand for one: four digits are enough for all that are unfit


def visible(text: str) -> str:
    """Replace each character that XML cannot carry by `‹U+001B›` (its code point); the rest is untouched.

    A `‹` that would read as such an escape is itself escaped, so `original` gives back the exact input.
    """
    return _UNFIT.sub(lambda match: f"‹U+{ord(match[0]):04X}›", text)


def shown_size(text: str) -> int:
    """How long `visible(text)` is; much faster where much is unfit."""
    return len(text) + (_ESCAPE - 1) * len(_UNFIT.findall(text))


def original(text: str) -> str:
    """The text that `visible` was given."""
    return _SHOWN.sub(lambda match: chr(int(match[1], 16)), text)


def decode(data: bytes) -> str:
    """Any bytes as text: UTF-8, and bytes that are not UTF-8 as lone surrogates (`visible` then shows them)."""
    return data.decode("utf-8", "surrogateescape")


def escape(text: str) -> str:
    """`text` as XML character data."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def attribute(text: str) -> str:
    """`text` as the value of an XML attribute in double quotes."""
    return escape(text).replace('"', "&quot;").replace("\n", "&#10;").replace("\t", "&#9;")


def wrap(text: str) -> str:
    """`text` as a CDATA section where that is possible, else escaped. Empty text stays empty."""
    if not text:
        return ""
    return escape(text) if "]]>" in text else f"<![CDATA[{text}]]>"


def embed(document: str) -> str:
    """A whole XML document as the text of another one: CDATA, split where the document closes one itself."""
    return "<![CDATA[" + document.replace("]]>", "]]]]><![CDATA[>") + "]]>"


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of `text`: its head and its tail, with a line between that names what is missing."""
    if len(text) <= limit:
        return text
    head, tail = beginning(text, limit - limit // 2), ending(text, limit // 2)
    return join(head, len(text) - len(head) - len(tail), tail)


def join(head: str, left_out: int, tail: str) -> str:
    """What is kept of a text, with a line between that names how many characters are missing."""
    return f"{head}\n[… {left_out} characters left out …]\n{tail}"


def beginning(shown: str, size: int) -> str:
    """The first `size` characters of visible text, fewer where an escape would be cut in two."""
    escape = _split_escape(shown, size)
    return shown[: escape.start() if escape else size]


def ending(shown: str, size: int) -> str:
    """The last `size` characters of visible text, fewer where an escape would be cut in two."""
    begin = max(0, len(shown) - size)
    escape = _split_escape(shown, begin)
    return shown[escape.end() if escape else begin :]


def _split_escape(shown: str, place: int) -> re.Match[str] | None:
    """The escape that goes on at `place`."""
    near = _SHOWN.finditer(shown, max(0, place - _ESCAPE), place + _ESCAPE)
    return next((found for found in near if found.start() < place < found.end()), None)
