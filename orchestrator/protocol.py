"""The engine protocol (docs/contract.md): framing, requests, replies. Used by the broker and by engine programs.

Both directions carry UTF-8 text in frames that end with U+0004 (EOT). A reply may turn into an error at any point:
U+0015 (NAK), `code message`, EOT. Neither byte can be part of a longer UTF-8 sequence, so frames are cut in bytes.

What comes from an instance is one of three documents (`Request`). What the broker sends to an engine program is the
same document with more in it: `seed` on every root, `max_tokens` on `<infer_xml>`, and the schema text, not a path
(empty: answer unguided). An engine program sends `<usage prompt= completion= cached= cost= finish= unguided=/>` EOT
after each reply to a request that carries `seed`, errors included; left-out values are unknown. Without `seed` (an
agent that talks to an engine directly) no usage is sent.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from lxml import etree

from orchestrator.untrusted import one_line

EOT = "\x04"
NAK = "\x15"
EOT_BYTE = b"\x04"
NAK_BYTE = b"\x15"
MAX_REQUEST = 16 * 1024 * 1024  # bytes of one request, without its EOT
MAX_FORWARDED = 6 * MAX_REQUEST  # bytes of the same request from the broker to an engine: escaped, with the schema
MAX_ANSWER = 16 * 1024 * 1024  # bytes of one reply
MAX_COUNTS = 20  # token counts per inference
MAX_TOKENS = 8192  # of one answer, unless the budget allows less

Kind = Literal["infer_xml", "token_count", "token_limit"]
ERROR_CODES = ("budget", "too_long", "engine", "bad_request")

_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}\?>\s*)?<(infer_xml|token_count|token_limit)[\s/>]")
_BIG = 1024 * 1024
_MOST_ATTRIBUTES = 16
_MOST_CHILDREN = 20_000  # turns of a conversation, with the other parts
_SAFE: dict[str, Any] = {
    "resolve_entities": False,
    "no_network": True,
    "load_dtd": False,
    "remove_comments": True,
    "remove_pis": True,
    "huge_tree": True,  # the size is limited before, DTDs are refused
    "encoding": "utf-8",
}
_big_parse = threading.Lock()  # one large document at a time: the supervisor's memory must not follow the instances'


class BadRequest(Exception):
    """The request can't be served as it stands; the text goes to whoever asked."""


@dataclass(frozen=True)
class Turn:
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True)
class Request:
    """One parsed request. `context` is None where the agent sent turns. `schema` is a path or the text, see above."""

    kind: Kind
    system: str = ""
    schema: str = ""
    context: str | None = None
    turns: tuple[Turn, ...] = ()
    prefix: str = ""
    seed: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class EngineUsage:
    """What an engine says one reply took, in tokens and US dollars; None = unknown. `finish`: stop, length or error.

    `unguided`: why the schema that came with the request did not guide the answer; None if it did, or if an engine does
    not say. It may quote the schema, so it is untrusted text: one line, at most 200 characters.
    """

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    cost: float | None = None
    finish: str = "stop"
    unguided: str | None = None


def parse_request(document: bytes, limit: int = MAX_REQUEST) -> Request:
    """A request as its parts. Raises BadRequest with a reason; never reads a DTD, an entity or the network."""
    if len(document) > limit:
        raise BadRequest(f"request of {len(document)} bytes, at most {limit} are taken")
    if not _START.match(document):
        raise BadRequest("expected one document: <infer_xml>, <token_count> or <token_limit/>, without a DOCTYPE")
    if len(document) > _BIG:
        with _big_parse:
            return _request_of(_parse(document))
    return _request_of(_parse(document))


def _parse(document: bytes) -> _Document:
    """Large documents are read without a tree, which would take 30 times their size; for small ones it is faster."""
    try:
        if len(document) > _BIG:
            return cast("_Document", etree.fromstring(document, etree.XMLParser(target=_Reader(), **_SAFE)))
        return _flat(etree.fromstring(document, etree.XMLParser(**_SAFE)))
    except (etree.XMLSyntaxError, ValueError) as error:
        raise BadRequest(f"not well-formed: {str(error)[:300]}") from None


def _flat(root: etree._Element) -> _Document:
    document = _Document(_element(root))
    for child in root:
        if len(child):
            raise _holds_markup(str(child.tag)[:60])
        document.children.append(_element(child))
    return document


def _element(element: etree._Element) -> _Element:
    attributes = {str(name): str(value) for name, value in element.attrib.items()}
    return _Element(str(element.tag)[:60], attributes, [element.text or ""])


def _holds_markup(tag: str) -> BadRequest:
    return BadRequest(f"<{tag}> takes text: put markup into CDATA or escape it")


@dataclass
class _Element:
    tag: str
    attributes: Mapping[str, str]
    parts: list[str] = field(default_factory=list)


@dataclass
class _Document:
    """The root and its children, which hold text alone."""

    root: _Element
    children: list[_Element] = field(default_factory=list)


class _Reader:
    """Receives the parser's events and refuses at once what no request has."""

    def __init__(self) -> None:
        self._document: _Document | None = None
        self._depth = 0

    def start(self, tag: str | bytes, attrib: Mapping[str | bytes, str | bytes]) -> None:
        self._depth += 1
        if len(attrib) > _MOST_ATTRIBUTES:
            raise BadRequest(f"<{str(tag)[:40]}> with {len(attrib)} attributes")
        element = _Element(str(tag)[:60], {str(name): str(value) for name, value in attrib.items()})
        if self._document is None:
            self._document = _Document(element)
        elif self._depth > 2:
            raise _holds_markup(self._document.children[-1].tag)
        elif len(self._document.children) >= _MOST_CHILDREN:
            raise BadRequest(f"more than {_MOST_CHILDREN} turns")
        else:
            self._document.children.append(element)

    def data(self, data: str | bytes) -> None:
        if self._depth == 2 and self._document is not None:
            self._document.children[-1].parts.append(str(data))

    def end(self, tag: str | bytes) -> None:
        self._depth -= 1

    def comment(self, data: str | bytes) -> None:
        pass  # the parser removes them

    def close(self) -> _Document:
        if self._document is None:
            raise BadRequest("not well-formed: there is no element")
        return self._document


def _request_of(document: _Document) -> Request:
    root = document.root
    kind: Kind = root.tag  # type: ignore[assignment]  # one of the three, by _START
    request = Request(kind=kind, seed=_number(root, "seed"), max_tokens=_number(root, "max_tokens"))
    if root.tag == "token_limit":
        return request
    seen: dict[str, str] = {}
    turns: list[Turn] = []
    for child in document.children:
        tag, text = child.tag, "".join(child.parts)
        if tag not in ("system", "schema", "context", "prefix", "turn"):
            raise BadRequest(f"unexpected element <{tag}>")
        if tag == "turn":
            role = child.attributes.get("role")
            if role not in ("user", "assistant"):
                raise BadRequest('a <turn> needs role="user" or role="assistant"')
            turns.append(Turn(role, text))  # type: ignore[arg-type]
        elif tag in seen:
            raise BadRequest(f"<{tag}> is given twice")
        else:
            seen[tag] = text
    if "context" in seen and turns:
        raise BadRequest("either one <context> or turns, not both")
    if "context" not in seen and not turns:
        raise BadRequest("neither <context> nor <turn> is given")
    if root.tag == "infer_xml" and "system" not in seen:
        raise BadRequest("<system> is missing")
    return replace(
        request,
        system=seen.get("system", ""),
        schema=seen.get("schema", "").strip(),
        context=seen.get("context"),
        turns=tuple(turns),
        prefix=seen.get("prefix", ""),
    )


def _number(root: _Element, name: str) -> int | None:
    text = root.attributes.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise BadRequest(f"{name}={text[:40]!r} is not a whole number")
    return int(text)


def write_request(request: Request) -> bytes:
    """The document of a request, with its EOT."""
    attributes = "".join(
        f' {name}="{value}"'
        for name, value in (("seed", request.seed), ("max_tokens", request.max_tokens))
        if value is not None
    )
    if request.kind == "token_limit":
        return f"<token_limit{attributes}/>{EOT}".encode()
    parts = [f"<{request.kind}{attributes}>", f"<schema>{escape(request.schema)}</schema>"]
    parts.append(f"<system>{escape(request.system)}</system>")
    if request.context is not None:
        parts.append(f"<context>{escape(request.context)}</context>")
    parts += [f'<turn role="{turn.role}">{escape(turn.text)}</turn>' for turn in request.turns]
    if request.prefix:
        parts.append(f"<prefix>{escape(request.prefix)}</prefix>")
    parts.append(f"</{request.kind}>{EOT}")
    return "".join(parts).encode()


def escape(text: str) -> str:
    """XML character data; a carriage return survives the parser's newline normalisation."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\r", "&#13;")


def write_error(code: str, message: str) -> bytes:
    """The rest of a reply that ends in an error: NAK, `code message`, EOT. One line, at most 2,000 characters."""
    line = " ".join(clean(message).split())[:2000]
    return f"{NAK}{code} {line}{EOT}".encode("utf-8", "replace")


def clean(text: str) -> str:
    """Model text without the two framing characters (U+FFFD in their place)."""
    if EOT in text or NAK in text:
        return text.replace(EOT, "\ufffd").replace(NAK, "\ufffd")
    return text


def write_usage(usage: EngineUsage) -> bytes:
    """The usage document that an engine sends after a reply, with its EOT."""
    names = ("prompt", "completion", "cached", "cost")
    values = [(name, getattr(usage, name)) for name in names]
    known = "".join(f' {name}="{value}"' for name, value in values if value is not None)
    why = escape(_reason(usage.unguided)).replace('"', "&quot;")
    unguided = f' unguided="{why}"' if why else ""
    return f'<usage{known} finish="{usage.finish}"{unguided}/>{EOT}'.encode()


def parse_usage(document: bytes) -> EngineUsage:
    """A usage document, without its EOT. Values that make no sense are unknown; raises BadRequest if it is no usage."""
    if not document.startswith(b"<usage"):
        raise BadRequest("expected <usage/> after the reply")
    root = _parse(document).root.attributes
    return EngineUsage(
        prompt=_whole(root.get("prompt")),
        completion=_whole(root.get("completion")),
        cached=_whole(root.get("cached")),
        cost=_amount(root.get("cost")),
        finish=re.sub(r"[^a-z_]", "", root.get("finish", "stop"))[:20] or "stop",
        unguided=_reason(root.get("unguided")) or None,
    )


def _reason(text: str | None) -> str:
    """One printable line that an XML attribute can hold, whatever was given."""
    return re.sub("[\ufffe\uffff]", "\ufffd", one_line(text or ""))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,12}", text) else None


def _amount(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value < 1e9 else None


def sampling_seed(campaign_seed: int, task: str, repeat: int, arm: str) -> Callable[[int], int]:
    """Seeds of one trial: number of the inference (from 1) → H(campaign seed, task, repeat, arm, number), 31 bits."""
    head = json.dumps([campaign_seed, task, repeat, arm], ensure_ascii=False, separators=(",", ":"))

    def seed(ordinal: int) -> int:
        digest = hashlib.sha256(f"{head}/{ordinal}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF

    return seed
