"""Driving the application in this process: a pilot whose screens can be read, and a feed that looks when it is told.

Nothing here waits for a time to pass: the application's own polling is switched off, `look` makes it look once, and
`until` gives it the processor until the screen says what was expected.
"""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from html import unescape
from unittest import mock

from rich.console import Console
from textual.pilot import Pilot

from orchestrator.watch import app as watch_app
from orchestrator.watch.app import WatchApp
from tests.watch.sample import Sample

NEVER = 1e6  # seconds between two looks of its own
PATIENCE = 60.0  # seconds, on a machine that is busy with other tests


class Driver:
    """A running application and its pilot."""

    def __init__(self, app: WatchApp, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        """Keys as Textual names them, one after the other, each to its end."""
        for key in keys:
            await self.pilot.press(key)
            await self.pilot.pause()

    async def look(self) -> None:
        """Have it read everything once more, and wait until that is shown."""
        before = self.app.snapshot
        self.app.overview.hurry("overview")
        await self.wait(lambda: self.app.snapshot is not before, "another look")

    async def wait(self, condition: Callable[[], object], what: str) -> None:
        """Until the condition holds. The screen is in the failure's message."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {PATIENCE:g} s for {what}; the screen is:\n{self.text()}")
            await self.pilot.pause()
            await asyncio.sleep(0.005)

    async def until(self, *texts: str, gone: str = "") -> str:
        """The screen, once all these texts are on it (and `gone` is not); a text may be broken into lines in a box."""
        screen = ""

        def seen() -> bool:
            nonlocal screen
            screen = self.text()
            inside = " ".join(" ".join(re.findall("┃([^┃]*)┃", screen)).split())
            joined = " ".join(screen.split()) + inside
            return all(text in joined for text in texts) and not (gone and gone in joined)

        await self.wait(seen, " and ".join(map(repr, texts)) + (f" without {gone!r}" if gone else ""))
        return screen

    def text(self) -> str:
        """What a person reads now."""
        console = self._console()
        with console.capture() as captured:
            console.print(self._rendered())
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", captured.get())
        return "\n".join(line.rstrip() for line in plain.splitlines())

    def picture(self, title: str) -> str:
        """The screen as SVG: no fonts from elsewhere, no random names."""
        console = self._console()
        console.print(self._rendered())
        svg = console.export_svg(title=title, unique_id="watch")
        svg = re.sub(r"\s*@font-face \{.*?\}|\s*<!--.*?-->", "", svg, flags=re.DOTALL)
        return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"

    def _console(self) -> Console:
        width, height = self.app.size
        return Console(
            width=width,
            height=height,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            record=True,
            legacy_windows=False,
            _environ={},
        )

    def _rendered(self) -> object:
        stack = self.app._background_screens
        return self.app.screen._compositor.render_update(full=True, screen_stack=stack, simplify=True)


@asynccontextmanager
async def watching(
    sample: Sample,
    view: str = "instances",
    ident: str = "",
    *,
    columns: int = 80,
    lines: int = 24,
    read_only: bool = False,
) -> AsyncIterator[Driver]:
    """The application on a sample, at the sample's time."""
    still = mock.patch.multiple(watch_app, POLL=NEVER, IDLE_POLL=NEVER)
    with sample.clock(), still:
        app = WatchApp(sample.home, view, ident, read_only=read_only)
        async with app.run_test(size=(columns, lines)) as pilot:
            driver = Driver(app, pilot)
            await driver.wait(lambda: app.snapshot is not None, "the first look")
            yield driver


def words(svg: str) -> list[str]:
    """The lines that a person reads in a picture, top to bottom."""
    found: dict[int, list[tuple[float, str]]] = {}
    for x, line, text in re.findall(
        r'<text [^>]*?x="([\d.]+)"[^>]*?clip-path="url\(#[^"]*line-(\d+)\)"[^>]*>([^<]*)', svg
    ):
        found.setdefault(int(line), []).append((float(x), unescape(text)))
    lines = []
    for number in sorted(found):
        built = ""
        for x, text in sorted(found[number]):
            built += " " * (round(x / 12.2) - len(built)) + text.replace("\xa0", " ")
        lines.append(built.rstrip())
    return lines
