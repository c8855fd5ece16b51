"""Text of unknown origin made fit for XML 1.0, reversibly, and cut to a size."""

from __future__ import annotations

import re

# XML 1.0 forbids most C0 controls, lone surrogates, U+FFFE and U+FFFF. CR is allowed but every parser turns it into LF.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]|‹(?=U\\+[0-9A-F]{4,6}›)")
_SHOWN = re.compile("‹U\\+([0-9A-F]{4,6})›")


def visible(text: str) -> str:
    """Replace each character that XML cannot carry by `‹U+001B›` (its code point); the rest is untouched.

    A `‹` that would read as such an escape is itself escaped, so `original` gives back the exact input.
    """
    return _UNFIT.sub(lambda match: f"‹U+{ord(match[0]):04X}›", text)


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
    head, tail = limit - limit // 2, limit // 2
    return f"{text[:head]}\n[… {len(text) - limit} characters left out …]\n{text[len(text) - tail :] if tail else ''}"
