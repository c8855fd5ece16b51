"""What the demo says between the commands: styled on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from orchestrator.untrusted import one_line


class Voice:
    """Prints to stdout. rich leaves out styles where that is no terminal, or NO_COLOR is set."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._acts = 0

    def act(self, title: str) -> None:
        """A heading."""
        self._acts += 1
        text = f"{self._acts} · {title}"
        if self._console.is_terminal:
            self._console.print()
            self._console.print(Rule(Text(text, style="bold"), align="left", style="dim"))
        else:
            self._line(f"\n{text}")

    def say(self, text: str) -> None:
        """Prose."""
        self._line(text)

    def command(self, line: str) -> None:
        """A command line that is about to run."""
        self._line(f"$ {line}", style="bold cyan")

    def quote(self, who: str, text: str) -> None:
        """What somebody else wrote."""
        self._line(f"  {who}: {one_line(text)}", style="green")

    def events(self, lines: Iterable[str]) -> None:
        """Lines of a log."""
        for line in lines:
            self._line(f"  supervise: {one_line(line, 160)}", style="dim")

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)
        self._console.file.flush()  # commands write to the same place
