"""A context as a conversation: actions are the assistant's turns, what came of them the user's.

Stable first: a turn stays as it is while later ones are added, and what changes in every iteration (the root's
attributes, the latest outputs of repeats) comes last. So an engine that keeps what it has read (a prefix cache) reads
only the new turns. Turns alternate, user first and last, as chat templates want it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lxml import etree

from instance.engine import Turn
from instance.entries import Entry, RepeatEntry
from instance.errors import StartError
from instance.renderer import Prompt, compile_document, system_text
from instance.validator import strict_parser

BEGIN = "The work begins. Answer with one action."
NOTE = """
# How the context is shown here

The context is not one document but this conversation: your actions are your own turns, and what came of each follows as
an element with the entry's id. The last message ends with `<context>`: its attributes, and the repeats that run, with
their latest output. Entries that you have deleted are gone from the conversation.
"""


class TranscriptRenderer:
    """Turns. `examples`, user and assistant in turn, come before the work."""

    def __init__(self, system_prompt: str, action_schema: str, examples: Sequence[Turn] = ()) -> None:
        self._system = f"{system_text(system_prompt, action_schema)}{NOTE}"
        self._examples = tuple(examples)

    def render(self, attributes: Mapping[str, str], entries: Sequence[Entry]) -> Prompt:
        """The conversation; each entry's turns are cached by the entry."""
        turns, told = list(self._examples), [BEGIN]
        for entry in entries:
            action, outcome = entry.turns()
            if action:
                turns += (Turn("user", "\n".join(told)), Turn("assistant", action))
                told = []
            told.append(f"It runs as {entry.id}." if isinstance(entry, RepeatEntry) else outcome)
        repeats = [entry for entry in entries if isinstance(entry, RepeatEntry)]
        told.append(compile_document(attributes, repeats))
        turns.append(Turn("user", "\n".join(told)))
        return Prompt(self._system, turns, compile_document(attributes, entries))


def load_examples(path: Path) -> list[Turn]:
    """The turns of `<examples><turn role="user">…</turn><turn role="assistant">…` ; none if there is no such file.

    Raises StartError if the file can't be read or the roles do not alternate, user first.
    """
    try:
        root = etree.fromstring(path.read_bytes(), strict_parser())
    except FileNotFoundError:
        return []
    except (OSError, etree.XMLSyntaxError) as error:
        raise StartError(f"the examples can't be read: {path}: {error}") from error
    turns = [Turn(str(child.get("role")), (child.text or "").strip()) for child in root.iterfind("turn")]
    if [turn.role for turn in turns] != ["user", "assistant"] * (len(turns) // 2):
        raise StartError(f"{path}: turns must alternate: user, assistant, …, the last one the assistant's")
    return turns
