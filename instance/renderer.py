"""How entries become a prompt. This is the agent's own business, so that a candidate can find a better way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from instance.engine import Turn
from instance.entries import Entry
from instance.text import attribute


class Prompt(NamedTuple):
    """What is sent: the system text, and one XML document or a conversation. `document` is what the log keeps."""

    system: str
    context: str | Sequence[Turn]
    document: str


class Renderer(Protocol):
    """Makes the prompt of an iteration."""

    def render(self, attributes: Mapping[str, str], entries: Sequence[Entry], limit: int | None = None) -> Prompt:
        """`attributes` of the root; with `limit`, no text of an entry may be longer than that."""
        ...


class DocumentRenderer:
    """One XML document: the root with what was measured, then the entries, oldest first."""

    def __init__(self, system_prompt: str, action_schema: str) -> None:
        self._system = f"{system_prompt.strip()}\n\n# Core actions\n\n{action_schema.strip()}\n"

    def render(self, attributes: Mapping[str, str], entries: Sequence[Entry], limit: int | None = None) -> Prompt:
        """The document; each entry's XML is cached by the entry."""
        document = compile_document(attributes, entries, limit)
        return Prompt(self._system, document, document)


def compile_document(attributes: Mapping[str, str], entries: Sequence[Entry], limit: int | None = None) -> str:
    """The context as the model reads it and as the log keeps it."""
    head = "".join(f'\n{name}="{attribute(value)}"' for name, value in attributes.items())
    if not entries:
        return f"<context{head}\n/>"
    body = "\n".join(entry.context_xml(limit) for entry in entries)
    return f"<context{head}\n>\n{body}\n</context>"
