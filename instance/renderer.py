"""How entries become a prompt. This is the agent's own business, so that a candidate can find a better way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from instance.engine import Turn
from instance.entries import Entry
from instance.text import attribute

RENDERER = "document"  # or "transcript": a conversation of turns (instance/transcript.py)


class Prompt(NamedTuple):
    """What is sent: the system text, and one XML document or a conversation. `document` is what the log keeps."""

    system: str
    context: str | Sequence[Turn]
    document: str


class Renderer(Protocol):
    """Makes the prompt of an iteration."""

    def render(self, attributes: Mapping[str, str], entries: Sequence[Entry]) -> Prompt:
        """`attributes` are those of the root; `entries`, oldest first, show themselves as short as they have to be."""
        ...


class DocumentRenderer:
    """One XML document: the root with what was measured, then the entries, oldest first."""

    def __init__(self, system_prompt: str, action_schema: str) -> None:
        self._system = system_text(system_prompt, action_schema)

    def render(self, attributes: Mapping[str, str], entries: Sequence[Entry]) -> Prompt:
        """The document; each entry's XML is cached by the entry."""
        document = compile_document(attributes, entries)
        return Prompt(self._system, document, document)


def choose_renderer(system_prompt: str, action_schema: str, procedures: Path, name: str = RENDERER) -> Renderer:
    """The renderer with this name. `procedures` may hold `examples.xml` for a transcript. Raises StartError."""
    if name == "document":
        return DocumentRenderer(system_prompt, action_schema)
    from instance.transcript import TranscriptRenderer, load_examples

    return TranscriptRenderer(system_prompt, action_schema, load_examples(procedures / "examples.xml"))


def system_text(system_prompt: str, action_schema: str) -> str:
    """The system prompt and the core actions, which are the schema."""
    return f"{system_prompt.strip()}\n\n# Core actions\n\n{action_schema.strip()}\n"


def compile_document(attributes: Mapping[str, str], entries: Sequence[Entry]) -> str:
    """The context as the model reads it and as the log keeps it."""
    head = "".join(f'\n{name}="{attribute(value)}"' for name, value in attributes.items())
    if not entries:
        return f"<context{head}\n/>"
    body = "\n".join([entry.context_xml() for entry in entries])
    return f"<context{head}\n>\n{body}\n</context>"
