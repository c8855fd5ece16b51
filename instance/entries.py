"""What working memory holds: one class for each kind of entry, each able to show itself as XML.

The XML of an entry is built once and kept until the entry changes: most entries never change, and a context is
compiled in every iteration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from lxml import etree

from instance.clock import stamp
from instance.iobuffer import IOBuffer
from instance.scripts import DEFAULT_LIMIT, DEFAULT_TIMEOUT, Script, ScriptResult, ScriptRunner
from instance.text import attribute, cut, visible, wrap

KEPT_ANSWER = 20_000  # characters of an invalid answer that its entry shows; the iteration log has all of it
OUTPUTS = ("stdout", "stderr", "content")  # texts that did not come from a decision: they are shortened first
# What is shown of an entry to make room: characters of each output, of each other text (None = all). A text that is
# at most _MARKER longer stays as it is.
SHED: tuple[tuple[int | None, int | None], ...] = ((None, None), (500, None), (100, 200), (0, 0))
LEFT_OUT = len(SHED)  # the level at which an entry is not shown at all
_MARKER = 60  # characters; a text is not cut to save less than what names the cut


class Entry(ABC):
    """One item of the context. `id` and `timestamp` never change."""

    element: ClassVar[str]

    def __init__(self, id: str, timestamp: datetime) -> None:
        self._id, self._timestamp = id, timestamp
        self._shown: str | None = None
        self._saved: str | None = None
        self._turns: tuple[str, str] | None = None
        self._shed = 0
        self.logged = False  # whether an iteration log, or a file beside it, has all of it as it is now

    @property
    def id(self) -> str:
        """What a delete names."""
        return self._id

    @property
    def timestamp(self) -> datetime:
        """When it was made."""
        return self._timestamp

    def update(self) -> None:  # noqa: B027
        """Refresh it for the next iteration; most kinds have nothing to refresh."""

    def cleanup(self) -> None:  # noqa: B027
        """Let go of what it holds, when it leaves the memory."""

    def generate_context(self) -> etree._Element:
        """The entry as an element of the context."""
        return etree.fromstring(self.context_xml())

    @property
    def shed(self) -> int:
        """How far it is shortened to make room in the context: an index of SHED, or LEFT_OUT. Nothing is lost by it."""
        return self._shed

    @shed.setter
    def shed(self, level: int) -> None:
        if level != self._shed:
            self._shed = level
            self.changed()

    def context_xml(self) -> str:
        """The entry as text of the context."""
        if self._shown is None:
            attributes = self._attributes() | ({"shed": "true"} if self._shed else {})
            self._shown = self._build(attributes, [(name, self._fit(name, text)) for name, text in self._texts()])
        return self._shown

    def whole_xml(self) -> str:
        """The same with nothing shortened."""
        return self._build(self._attributes(), self._texts())

    def turns(self) -> tuple[str, str]:
        """The same for a conversation: the action as it was answered ("" if it was none), and what came of it."""
        if self._turns is None:
            self._turns = self._as_turns()
        return self._turns

    def state_xml(self) -> str:
        """All that is needed to make the entry again."""
        if self._saved is None:
            more = {"time": stamp(self._timestamp)} | self._state_attributes()
            more |= {"shed": str(self._shed)} if self._shed else {}
            self._saved = self._build(self._attributes() | more, self._texts(), layout=False)
        return self._saved

    def changed(self) -> None:
        """Forget the XML that was built."""
        self._shown = self._saved = self._turns = None

    def _attributes(self) -> dict[str, str]:
        return {"id": self._id}

    def _state_attributes(self) -> dict[str, str]:
        return {}

    def _action_attributes(self) -> dict[str, str]:
        """The attributes of the action that made it."""
        return {}

    @abstractmethod
    def _texts(self) -> Sequence[tuple[str, str]]:
        """The texts in order, each with the name of its element; "" = directly in the entry."""

    def _as_turns(self) -> tuple[str, str]:
        """What the model wrote stands in its own turn, and is not repeated in the answer to it."""
        texts = [(name, self._fit(name, text)) for name, text in self._texts()]
        attributes = self._attributes() | ({"shed": "true"} if self._shed else {})
        own, came = [pair for pair in texts if not pair[0]], [pair for pair in texts if pair[0]]
        return self._build(self._action_attributes(), own), self._build(attributes, came)

    def _fit(self, name: str, text: str) -> str:
        limit = SHED[min(self._shed, LEFT_OUT - 1)][name not in OUTPUTS]
        if limit is None or 0 < len(text) <= limit + _MARKER:
            return text
        return cut(text, limit) if limit else ""

    def _build(self, attributes: dict[str, str], texts: Sequence[tuple[str, str]], layout: bool = True) -> str:
        newline = "\n" if layout else ""
        head = "".join(f' {name}="{attribute(value)}"' for name, value in attributes.items())
        parts = []
        for name, text in texts:
            body = wrap(text)
            if not name:
                parts.append(f"{newline}{body}" if body else "")
            else:
                parts.append(f"{newline}<{name}>{body}</{name}>" if body else f"{newline}<{name}/>")
        inside = "".join(parts)
        return f"<{self.element}{head}>{inside}{newline}</{self.element}>" if inside else f"<{self.element}{head}/>"


class ScriptEntry(Entry):
    """A script and what it printed. `held`: it was cut off by a crash, and only a person can have it run again."""

    def __init__(
        self,
        script: Script,
        runner: ScriptRunner,
        id: str,
        timestamp: datetime,
        result: ScriptResult | None = None,
        *,
        held: bool = False,
    ) -> None:
        super().__init__(id, timestamp)
        self.request, self.result, self.held = script, result or ScriptResult(), held
        self.running = False
        self._runner = runner

    @property
    def script(self) -> str:
        """The text that is run."""
        return self.request.text

    @property
    def stdout(self) -> str:
        """What it printed, cut to its limit."""
        return self.result.stdout

    @property
    def stderr(self) -> str:
        """What it printed as errors, cut to its limit."""
        return self.result.stderr

    @property
    def exit_code(self) -> int | None:
        """How it ended; None if it has not."""
        return self.result.exit_code

    def begin(self) -> None:
        """Mark it as running: found in a saved state, that mark means it was cut off."""
        self.running, self._saved = True, None

    def finish(self, result: ScriptResult) -> None:
        """Take in the outcome."""
        self.running, self._saved = False, None
        if result != self.result:
            self.result, self.logged = result, False
            self.changed()

    def update(self) -> None:
        """Run it, and wait for it."""
        run_side_by_side([self], self._runner)

    def _attributes(self) -> dict[str, str]:
        attributes = super()._attributes()
        if self.result.exit_code is not None:
            attributes["exit_code"] = str(self.result.exit_code)
        for name in ("timed_out", "truncated", "interrupted"):
            if getattr(self.result, name):
                attributes[name] = "true"
        return attributes

    def _state_attributes(self) -> dict[str, str]:
        flags = {name: "true" for name in ("running", "held") if getattr(self, name)}
        return {"timeout": repr(self.request.timeout), "limit": str(self.request.limit)} | flags

    def _action_attributes(self) -> dict[str, str]:
        request, attributes = self.request, {}
        if request.timeout != DEFAULT_TIMEOUT:
            attributes["timeout"] = f"{request.timeout:g}"
        if request.limit != DEFAULT_LIMIT:
            attributes["limit"] = str(request.limit)
        return attributes

    def _texts(self) -> Sequence[tuple[str, str]]:
        return ("", self.request.text), ("stdout", self.result.stdout), ("stderr", self.result.stderr)


class SingleEntry(ScriptEntry):
    """A script that runs once, when it is added."""

    element = "single"


class RepeatEntry(ScriptEntry):
    """A script that runs again in every iteration."""

    element = "repeat"


class ReasoningEntry(Entry):
    """A thought of the model."""

    element = "reasoning"

    def __init__(self, content: str, id: str, timestamp: datetime) -> None:
        super().__init__(id, timestamp)
        self.content = content

    def _texts(self) -> Sequence[tuple[str, str]]:
        return (("", self.content),)


class ParseErrorEntry(Entry):
    """An answer that was no action, or an action that could not be carried out, and why."""

    element = "parse_error"

    def __init__(self, content: str, error: str, id: str, timestamp: datetime) -> None:
        super().__init__(id, timestamp)
        self.content, self.error = content, error

    @classmethod
    def of(cls, answer: str, error: str, id: str, timestamp: datetime) -> ParseErrorEntry:
        """Of an answer of any length and any characters: what is kept of it is at most KEPT_ANSWER, fit for XML."""
        return cls(cut(visible(answer), KEPT_ANSWER), visible(error), id, timestamp)

    def _texts(self) -> Sequence[tuple[str, str]]:
        return ("error", self.error), ("content", self.content)

    def _as_turns(self) -> tuple[str, str]:
        return self._fit("content", self.content), self._build(self._attributes(), [("error", self.error)])


class ReadEntry(Entry):
    """What the user had sent when it was read."""

    element = "read_stdin"

    def __init__(self, io_buffer: IOBuffer, id: str, timestamp: datetime, content: str | None = None) -> None:
        super().__init__(id, timestamp)
        self.content = io_buffer.read() if content is None else content

    def _texts(self) -> Sequence[tuple[str, str]]:
        return (("", self.content),)

    def _as_turns(self) -> tuple[str, str]:
        return f"<{self.element}/>", self.context_xml()


class WriteEntry(Entry):
    """What was sent to the user. `io_buffer` None: it was sent before (the entry comes from a saved state)."""

    element = "write_stdout"

    def __init__(self, content: str, io_buffer: IOBuffer | None, id: str, timestamp: datetime) -> None:
        super().__init__(id, timestamp)
        self.content = content
        if io_buffer is not None:
            io_buffer.write(content + "\n")

    def _texts(self) -> Sequence[tuple[str, str]]:
        return (("", self.content),)


def run_side_by_side(entries: Sequence[ScriptEntry], runner: ScriptRunner) -> None:
    """Run the scripts of all entries at once, and wait for all."""
    for entry, result in zip(entries, runner.run([entry.request for entry in entries]), strict=True):
        entry.finish(result)
