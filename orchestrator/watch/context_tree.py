"""A context, or an answer, as a tree that can be folded. The text is hostile: it may be no XML at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lxml import etree

from orchestrator.untrusted import one_line, printable

MAX_NODES = 5000
MAX_DEPTH = 24
TITLE = 160  # characters
SUMMARY = 200  # characters; the same is looked at to make it


@dataclass(frozen=True)
class Node:
    """One element. All texts are harmless (`untrusted.printable`); `text` may be long and have many lines.

    `title`: tag and attributes in one line. `summary`: the beginning of what it holds, one line. `new`: it was not in
    the context before.
    """

    title: str
    tag: str
    summary: str
    text: str
    size: int  # characters
    new: bool
    children: tuple[Node, ...] = ()


def tree(text: str, before: str | None = None) -> Node:
    """The tree of a context. `before`: the context of the iteration before, to tell what is new (None: all is).

    A conversation becomes a node for each turn, with the entries in it. What is no XML becomes one node with its text.
    """
    turns = conversation(text)
    if turns is not None:
        return _turns(turns, [] if before is None else conversation(before) or [])
    root = _parsed(text)
    if root is None:
        shown = printable(text)
        return Node("text", "", one_line(shown[:SUMMARY]), shown, len(text), text != before)
    old = None if before is None else _parsed(before)
    known = set() if old is None else {_bytes(child) for child in _elements(old)}
    return _Builder(known).root(root)


def conversation(text: str) -> list[tuple[str, str]] | None:
    """(role, text) of each turn, of a request that is a conversation (`trajectory.prompt`); None if it is none."""
    if not text.startswith("<turn role="):
        return None
    root = _parsed(f"<turns>{printable(text)}</turns>")
    if root is None:
        return None
    return [(one_line(str(turn.get("role")), 20), turn.text or "") for turn in _elements(root)]


def _turns(turns: list[tuple[str, str]], before: list[tuple[str, str]]) -> Node:
    shared = 0
    while shared < min(len(turns), len(before)) and turns[shared] == before[shared]:
        shared += 1
    children = []
    for number, (role, text) in enumerate(turns):
        new = number >= shared
        root = _parsed(f"<turn>{text}</turn>")
        made = Node("", "", "", printable(text), len(text), new) if root is None else _Builder(set()).root(root)
        inner = tuple(_aged(child, new=new) for child in made.children)
        size = max(made.size, len(text))
        children.append(Node(role, role, one_line(text[:SUMMARY]), made.text.strip("\n"), size, new, inner))
    title = f"conversation of {len(turns)} turns"
    return Node(
        title, "conversation", "", "", sum(child.size for child in children), shared < len(turns), tuple(children)
    )


def _aged(node: Node, *, new: bool) -> Node:
    return replace(node, new=new, children=tuple(_aged(child, new=new) for child in node.children))


def answered_with(before: str, after: str) -> str | None:
    """What the user's side said between two states of a conversation, as readable text; None if it is none."""
    earlier, later = conversation(before), conversation(after)
    if earlier is None or later is None:
        return None
    known = {_bytes(entry) for _, text in earlier for entry in _entries(text) or ()}
    shared = 0
    while shared < min(len(earlier), len(later)) and earlier[shared] == later[shared]:
        shared += 1
    said = []
    for role, text in later[shared:]:
        entries = _entries(text)
        if role == "assistant":
            continue
        if entries is None:
            said.append(printable(text))
            continue
        fresh = [one for one in entries if _bytes(one) not in known and one.tag != "context"]  # which is metrics
        said += [readable(_bytes(one).decode("utf-8", "replace")) for one in fresh]
    return "\n".join(said)


def _entries(turn: str) -> list[etree._Element] | None:
    root = _parsed(f"<turn>{turn}</turn>")
    return None if root is None else list(_elements(root))


def plainly(text: str) -> str:
    """A request as text for people: a conversation without the escapes that its turns have in XML."""
    turns = conversation(text)
    return text if turns is None else "\n".join(f"[{role}]\n{inner}" for role, inner in turns)


def readable(entries: str) -> str:
    """Entries of a context as indented text, whole and harmless; what is no XML stays as it is."""
    root = _parsed(f"<entries>{entries}</entries>")
    if root is None:
        return printable(entries)
    made = _Builder(set()).root(root)
    return "\n".join(line for child in made.children for line in _lines(child, ""))


def _lines(node: Node, indent: str) -> Iterator[str]:
    yield indent + node.title
    if node.text:
        yield from (f"{indent}  {line}" for line in node.text.split("\n"))
    for child in node.children:
        if child.text or child.children or child.title != child.tag:  # an empty <stderr/> says nothing
            yield from _lines(child, indent + "  ")


class _Builder:
    def __init__(self, known: set[bytes]) -> None:
        self._known = known
        self._room = MAX_NODES

    def root(self, element: etree._Element) -> Node:
        children: list[Node] = []
        for child in _elements(element):
            if self._room <= 0:
                children.append(_rest(sum(1 for _ in _elements(element)) - len(children)))
                break
            children.append(self._node(child, _bytes(child) not in self._known, 1))
        return self._made(element, any(child.new for child in children) or not children, tuple(children))

    def _node(self, element: etree._Element, new: bool, depth: int) -> Node:
        self._room -= 1
        if depth >= MAX_DEPTH:
            inner = _bytes(element).decode("utf-8", "replace")
            return Node(_title(element), _tag(element), one_line(inner[:SUMMARY]), printable(inner), len(inner), new)
        children: list[Node] = []
        for child in _elements(element):
            if self._room <= 0:
                children.append(_rest(1))
                break
            children.append(self._node(child, new, depth + 1))
        return self._made(element, new, tuple(children))

    def _made(self, element: etree._Element, new: bool, children: tuple[Node, ...]) -> Node:
        pieces = [element.text or "", *(child.tail or "" for child in element)]
        text = printable("\n".join(piece.strip("\n") for piece in pieces if piece.strip()))
        summary = one_line(text[:SUMMARY]) or one_line(" ".join(_first_texts(children)), SUMMARY)
        size = len(text) + sum(child.size for child in children)
        return Node(_title(element), _tag(element), summary, text, size, new, children)


def _first_texts(children: tuple[Node, ...]) -> Iterator[str]:
    return (child.summary or child.tag for child in children[:8])


def _rest(count: int) -> Node:
    return Node(f"… {count:,} more", "", "", "", 0, False)


def _parsed(text: str) -> etree._Element | None:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
    )
    try:
        return etree.fromstring(text.strip().encode("utf-8", "replace"), parser)
    except (etree.XMLSyntaxError, ValueError):
        return None


def _elements(element: etree._Element) -> Iterator[etree._Element]:
    return (child for child in element if isinstance(child.tag, str))


def _bytes(element: etree._Element) -> bytes:
    return etree.tostring(element, encoding="utf-8", with_tail=False)


def _tag(element: etree._Element) -> str:
    return one_line(str(element.tag).rpartition("}")[2], 60)


def _title(element: etree._Element) -> str:
    words = [f"{one_line(str(name), 40)}={one_line(str(value), 60)}" for name, value in element.attrib.items()]
    return one_line(" ".join([_tag(element), *words]), TITLE)
