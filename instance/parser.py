"""A valid answer becomes a command or an entry."""

from __future__ import annotations

from lxml import etree

from instance.clock import Clock, IdGenerator
from instance.commands import Command, DeleteCommand, StopCommand
from instance.entries import Entry, ReadEntry, ReasoningEntry, RepeatEntry, SingleEntry, WriteEntry
from instance.errors import Unusable
from instance.iobuffer import IOBuffer
from instance.scripts import DEFAULT_LIMIT, DEFAULT_TIMEOUT, Script, ScriptRunner
from instance.text import visible
from instance.validator import strict_parser, tidy


class ResponseParser:
    """Makes commands and entries; entries get their id and time here."""

    def __init__(self, io_buffer: IOBuffer, runner: ScriptRunner, ids: IdGenerator, clock: Clock) -> None:
        self._io, self._runner, self._ids, self._clock = io_buffer, runner, ids, clock

    def parse(self, xml: str) -> Command | Entry:
        """The action of an answer that is valid. Raises Unusable, with words for the model, if it can't be done."""
        root = etree.fromstring(tidy(xml).encode(), strict_parser())
        text = visible((root.text or "").strip())
        match root.tag:
            case "delete":
                return DeleteCommand(root.get("id", "").strip())
            case "stop":
                return StopCommand()
            case "read_stdin":
                return ReadEntry(self._io, self._ids.next(), self._clock.now())
            case "write_stdout":
                return WriteEntry(text, self._io, self._ids.next(), self._clock.now())
            case "reasoning":
                return ReasoningEntry(text, self._ids.next(), self._clock.now())
            case "single" | "repeat":
                kind = SingleEntry if root.tag == "single" else RepeatEntry
                return kind(self._script(root, text), self._runner, self._ids.next(), self._clock.now())
            case _:
                raise Unusable(f"The schema allows <{root.tag}>, but this agent can't carry it out.")

    @staticmethod
    def _script(root: etree._Element, text: str) -> Script:
        if not text:
            raise Unusable(f"The script of <{root.tag}> is empty.")
        return Script(text, float(root.get("timeout", DEFAULT_TIMEOUT)), int(root.get("limit", DEFAULT_LIMIT)))
