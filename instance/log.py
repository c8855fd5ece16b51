"""The iteration log: one file per iteration, written before the answer is parsed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from instance.files import digest, write_whole
from instance.text import escape, visible

_NAME = re.compile(r"(\d{8,})\.xml")


class IterationLogger:
    """Writes `<directory>/00000001.xml` and so on; the texts behind the hashes lie in `<directory>/texts/<hash>`.

    A file holds `<iteration>` with the compiled context inside `<context>` and the raw answer, escaped, in
    `<response>`; characters that XML cannot carry are shown as in `instance.text.visible`. An entry that the context
    shows shortened, and that no earlier log has in full, lies in `<directory>/whole/00000001-<id>`.
    """

    def __init__(self, directory: Path, system_prompt: str, action_schema: str) -> None:
        self._directory = directory
        texts = directory / "texts"
        texts.mkdir(parents=True, exist_ok=True)
        hashes = []
        for text in (system_prompt, action_schema):
            hashes.append(digest(text))
            if not (texts / hashes[-1]).exists():
                write_whole(texts / hashes[-1], text)
        self._head = f'<iteration system_prompt_hash="{hashes[0]}" action_schema_hash="{hashes[1]}">\n<context>\n'

    def last(self) -> int:
        """The highest number of a log that is there; 0 if there is none."""
        with os.scandir(self._directory) as entries:
            numbers = (_NAME.fullmatch(entry.name) for entry in entries)
            return max((int(match[1]) for match in numbers if match), default=0)

    def log_iteration(self, number: int, context: str, response: str) -> Path:
        """Store one context and the answer to it. Raises OSError if that fails."""
        path = self._directory / f"{number:08d}.xml"
        text = f"{self._head}{context}\n</context>\n<response>{escape(visible(response))}</response>\n</iteration>\n"
        write_whole(path, text)
        return path

    def log_entry(self, number: int, id: str, xml: str) -> None:
        """Store one entry that log `number` does not show in full. Raises OSError if that fails."""
        whole = self._directory / "whole"
        whole.mkdir(exist_ok=True)
        write_whole(whole / f"{number:08d}-{id}", f"{xml}\n")
