"""The dashboard's application: views, keys, themes. All reading is done in threads (`reader.py`)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Input

from orchestrator.config import Watch, load_settings
from orchestrator.errors import SiaError, UsageError
from orchestrator.home import Home
from orchestrator.untrusted import one_line, printable
from orchestrator.watch import actions, dialogs, steps
from orchestrator.watch.bars import Bar, Footer, Hint, Note, Tabs
from orchestrator.watch.feed import Feed
from orchestrator.watch.keys import BY_NAME, Keymap
from orchestrator.watch.panels_overview import headline
from orchestrator.watch.reader import Reader
from orchestrator.watch.screens import VIEWS
from orchestrator.watch.values import Event, Snapshot
from orchestrator.watch.view import View

POLL = 0.5  # seconds between two looks at what runs
CLOCKS = 0.9  # seconds between two drawings when nothing but the time has changed
IDLE_POLL = 1.5  # once nothing has changed for a while, or the terminal lost the focus
IDLE_AFTER = 20  # polls without a change
GONE = 10.0  # seconds that an orderly end may take after a signal, also on a busy machine
LAST = ("filter", "palette", "help", "quit")  # always in the footer
TABS = ("instances", "campaign", "compare", "generations", "events", "sandbox")


class Loaded(Message):
    """A reading job has ended (sent from its thread)."""

    def __init__(self, name: str, value: Any, error: BaseException | None) -> None:
        super().__init__()
        self.name, self.value, self.error = name, value, error


class Done(Message):
    """Work in a thread has ended; `then` is called in the screen's thread."""

    def __init__(self, then: Callable[[Any, BaseException | None], None], value: Any, error: BaseException | None):
        super().__init__()
        self.then, self.value, self.error = then, value, error


class MainScreen(Screen[None], inherit_bindings=False):
    """Headline, tabs, the view, the filter, a note, the footer."""

    AUTO_FOCUS = None

    def __init__(self) -> None:
        super().__init__(id="main")
        self.headline, self.tabs, self.note, self.footer = Bar("headline", lines=2), Tabs("tabs"), Note(), Footer()
        self.filter = Input(id="filter", placeholder="words", compact=True, select_on_focus=False)
        self.views: dict[str, View] = {view.TITLE: view() for view in VIEWS}

    def compose(self) -> ComposeResult:
        """Everything there is; views that are not looked at cost nothing."""
        yield self.headline
        yield self.tabs
        with ContentSwitcher(id="views", initial="view-instances"):
            yield from self.views.values()
        yield self.filter
        yield self.note
        yield self.footer

    def on_key(self, event: events.Key) -> None:
        """Every key that the filter's line did not take."""
        app = self.app
        assert isinstance(app, WatchApp)
        if app.screen is not self:  # a dialog was opened by the key before this one
            event.stop()
            app.screen.post_message(events.Key(event.key, event.character))
        elif app.key(event):  # else a line of text may have a use for it
            event.stop()
            event.prevent_default()


class WatchApp(App[int], inherit_bindings=False):
    """`sia watch`."""

    CSS = """
    MainScreen { layout: vertical; overflow: hidden; }
    #views { height: 1fr; }
    #filter { height: 1; border: none; padding: 0 1; display: none; width: 1fr; }
    Dialog { align: center middle; background: transparent; }
    #box { width: 76; max-width: 96%; height: auto; max-height: 90%; border: heavy $primary; background: $surface;
           padding: 0 1; }
    #box.wide { width: 100; }
    #dialog-title { text-style: bold; }
    #dialog-text { height: 3; margin: 1 0; }
    #dialog-input { height: 1; border: none; padding: 0; }
    #dialog-input:disabled { display: none; }
    Input > .input--cursor { text-style: reverse; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    CLOSE_TIMEOUT = 2.0
    BINDINGS = [Binding("ctrl+c", "leave", priority=True, show=False, system=True)]  # noqa: RUF012 (Textual's way)

    def __init__(
        self,
        home: Home,
        view: str = "instances",
        ident: str = "",
        *,
        read_only: bool = False,
        settings: Watch | None = None,
    ) -> None:
        """`view`, `ident`: what to begin with. Raises ConfigError for a key map that can't be."""
        super().__init__(ansi_color=True if os.environ.get("NO_COLOR") else None)
        self.home, self.read_only = home, read_only
        self.settings = settings or Watch()
        self.keymap = Keymap(self.settings.keys)
        self.snapshot: Snapshot | None = None
        self.marked: str | None = None  # a trial that waits for a second one to be compared with
        self.stack: list[tuple[str, str]] = [(view, ident)]
        self.last_resort: threading.Timer | None = None
        self._bars: object = None
        self._unchanged = 0
        self._drawn_at = 0.0
        self.theme = actions.THEMES["terminal" if self.no_color else self.settings.theme]
        self.overview = Reader("overview", self._deliver)
        self.details = Reader("details", self._deliver)
        self.campaigns = Reader("campaigns", self._deliver)  # its statistics take a second at first
        self.comparing = Reader("comparing", self._deliver)
        self.readers = (self.overview, self.details, self.campaigns, self.comparing)

    def get_default_screen(self) -> Screen[None]:
        """The one screen below all dialogs."""
        return MainScreen()

    # -- life

    async def on_mount(self) -> None:
        """Begin to read."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if threading.current_thread() is threading.main_thread():
                loop.add_signal_handler(number, self._end, 128 + number)
        feed = Feed(self.home)
        self._feed = feed
        self.overview.every("overview", POLL, feed.poll)

    def on_ready(self) -> None:
        """Everything is composed: the first view, and reading begins."""
        self._show(*self.stack[-1])
        self.app_resume_signal.subscribe(self, lambda _: actions.DO["redraw"](self))  # fg: the screen is empty
        for reader in self.readers:
            reader.start()

    def on_unmount(self) -> None:
        """End the threads; connections are closed where they were opened."""
        for reader in self.readers:
            reader.close(self._feed.close if reader is self.overview else lambda: None)
        for reader in self.readers:
            if reader.is_alive():
                reader.join(timeout=0.5)

    def _end(self, code: int) -> None:
        """A signal: put the terminal back in order and leave. Should that hang (a terminal that is gone takes nothing
        any more), leave all the same: there is nothing to save."""
        self.last_resort = threading.Timer(GONE, os._exit, (code,))
        self.last_resort.daemon = True
        self.last_resort.start()
        self.exit(code, return_code=code)

    def action_leave(self) -> None:
        """ctrl+c, everywhere."""
        self.exit(0)

    def _fatal_error(self) -> None:
        """A mistake of ours. Textual would print local variables, which hold what instances wrote."""
        import traceback

        self._exit_renderables.append(Text(printable(traceback.format_exc())))
        self._close_messages_no_wait()

    # -- threads

    def _deliver(self, name: str, value: Any, error: BaseException | None) -> None:
        self.post_message(Loaded(name, value, error))

    def in_thread(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        """Do `work` beside everything else, then call `then(value, error)` in the screen's thread."""

        def run() -> None:
            try:
                value, error = work(), None
            except Exception as failure:
                value, error = None, failure
            self.post_message(Done(then, value, error))

        threading.Thread(target=run, name="watch-step", daemon=True).start()

    def on_done(self, event: Done) -> None:
        """Work has ended."""
        if not self.ending:
            event.then(event.value, event.error)

    @property
    def ending(self) -> bool:
        """Whether the screen is being taken down: news are for nobody any more."""
        return not self.screen_stack or not self.main.children

    def on_loaded(self, event: Loaded) -> None:
        """News from a reading thread."""
        if self.ending:
            return
        if event.name == "overview":
            self._news(event.value, event.error)
        else:
            self.view.loaded(event.name, event.value, event.error)
            self.refresh_bars()

    def _news(self, snapshot: Snapshot | None, error: BaseException | None) -> None:
        if snapshot is None:
            self.say(message_of(error), bad=True)
            return
        changed = self.snapshot is None or snapshot.serial != self.snapshot.serial
        self._unchanged = 0 if changed else self._unchanged + 1
        self._pace()
        self.snapshot = snapshot
        if not changed and time.monotonic() - self._drawn_at < CLOCKS:
            return  # only clocks went on
        self._drawn_at = time.monotonic()
        self._headline()
        self.view.snapshot(snapshot)
        self.refresh_bars()

    def _pace(self) -> None:
        idle = self._unchanged > IDLE_AFTER or not self.app_focus
        self.overview.pace("overview", IDLE_POLL if idle else POLL)

    # -- views

    @property
    def view(self) -> View:
        """The view that is shown."""
        return self.main.views[self.stack[-1][0]]

    @property
    def main(self) -> MainScreen:
        """The screen below the dialogs."""
        screen = self.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen

    def go(self, view: str, ident: str = "", *, push: bool = True) -> None:
        """Show a view; `push`: esc comes back from it."""
        if self.stack[-1] == (view, ident):
            return
        self.view.leave()
        if push:
            self.stack = [*[each for each in self.stack if each != (view, ident)], (view, ident)][-20:]
        else:
            self.stack = [(view, ident)]
        self._show(view, ident)

    def _show(self, view: str, ident: str) -> None:
        self.main.query_one("#views", ContentSwitcher).current = f"view-{view}"
        shown = self.view
        shown.focus_pane(shown.pane_index)
        shown.enter(ident)
        if self.snapshot is not None:
            shown.snapshot(self.snapshot)
        self._close_filter()
        self.refresh_bars()

    def back(self) -> None:
        """First drop the filter, then go to the view before."""
        if self.view.filter_text:
            self.view.set_filter("", done=True)
            self.refresh_bars()
        elif len(self.stack) > 1:
            self.view.leave()
            self.stack = self.stack[:-1]
            self._show(*self.stack[-1])
        elif self.stack[-1][0] != "instances":
            self.go("instances", push=False)

    # -- keys

    def key(self, event: events.Key) -> bool:
        """A key of the main screen; whether it was used up."""
        if self.focused is not None:
            return self._filter_key(event)
        self.note.fade()
        action = self.keymap.action(event.key, event.character)
        if action is not None:
            self.act(action)
        return True

    def act(self, name: str) -> None:
        """Carry out an action by name: from a key, the palette, the footer, the mouse."""
        if BY_NAME[name].steps:
            steps.begin(self, name, self.view.target())
        elif name in TABS:
            self.go(name, self.about(name), push=False)
        elif name in actions.DO:
            actions.DO[name](self)
        elif name == "back":
            self.back()
        elif name == "filter":
            self.open_filter()
        else:
            self.view.act(name)
        self.refresh_bars()

    def about(self, view: str) -> str:
        """A view that is chosen by its number is about what the cursor is on, where that fits."""
        target = self.view.target()
        if view == "campaign":
            return target.campaign or ""
        if view == "sandbox":
            return (target.instance.id if target.instance else target.trial) or ""
        return ""

    def open_filter(self) -> None:
        """Type words."""
        line = self.main.filter
        line.display = True
        line.value = self.view.filter_text
        line.cursor_position = len(line.value)
        self.main.set_focus(line)

    def _filter_key(self, event: events.Key) -> bool:
        if event.key == "escape":
            self.view.set_filter("", done=True)
            self._close_filter()
            self.refresh_bars()
            return True
        if event.key in ("down", "up", "pagedown", "pageup") and (action := self.keymap.action(event.key, None)):
            self.view.act(action)
            return True
        line = self.main.filter
        if event.key == "enter":
            self._close_filter()
            self.view.set_filter(line.value, done=True)
            self.refresh_bars()
            return True
        if event.is_printable:  # it was typed before the line had the focus
            line.insert_text_at_cursor(event.character or "")
            return True
        return False

    def _close_filter(self) -> None:
        self.main.set_focus(None)
        self.main.filter.display = False

    def on_input_changed(self, event: Input.Changed) -> None:
        """Lines are chosen while words are typed."""
        if event.input.id == "filter" and event.input.has_focus:
            self.view.set_filter(event.value, done=False)
            self.refresh_bars()

    def show_event(self, event: Event) -> None:
        """The whole text of an event."""
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
        title = one_line(f"{clock} {event.kind} {event.subject}", 70)
        self.push_screen(dialogs.Say(title, printable(event.text)))

    @staticmethod
    def words_of(error: BaseException | None) -> str:
        """An error for a person."""
        return message_of(error)

    # -- bars

    @property
    def note(self) -> Note:
        """The line for what just happened."""
        return self.main.note

    def say(self, text: str, *, bad: bool = False) -> None:
        """A sentence above the footer, until the next one or the next key."""
        if not self.ending:
            self.note.say(text, bad=bad)

    def _headline(self) -> None:
        if self.snapshot is not None:
            self.main.headline.put(*headline(self.snapshot, self.size.width).split("\n"))

    def refresh_bars(self) -> None:
        """Tabs and footer follow the view, the cursor and the mode."""
        view = self.view
        state, must = view.state(), self.read_only or bool(view.filter_text)
        live = [name for name in view.live() if not (self.read_only and BY_NAME[name].steps)]
        instance = view.target().instance
        paused = instance is not None and instance.paused_since is not None
        shown = (view.TITLE, state, must, live, self.size, paused)
        if shown == self._bars:
            return
        self._bars = shown
        names = [(name, f"{self.keymap.hint(name)} {name}", self.keymap.hint(name)) for name in TABS]
        if view.TITLE not in TABS:
            names.append((view.TITLE, view.TITLE, view.TITLE))
        rest = "  ".join(part for part in (state, "READ-ONLY" if self.read_only else "") if part)
        self.main.tabs.choose(names, view.TITLE, rest, must=must)
        self.main.footer.offer(self._hints(live, paused=paused), self._hints(LAST))

    def _hints(self, names: Sequence[str], *, paused: bool = False) -> list[Hint]:
        words = {"pause": "resume"} if paused else {}
        return [
            Hint(self.keymap.hint(name), words.get(name, BY_NAME[name].word), name)
            for name in names
            if self.keymap.keys[name]
        ]

    def on_tabs_chosen(self, event: Tabs.Chosen) -> None:
        """A tab or a footer key was clicked."""
        event.stop()
        if event.name in BY_NAME:
            self.act(event.name)

    def on_resize(self) -> None:
        """The headline has another width."""
        self._headline()

    def on_app_focus(self) -> None:
        """The terminal is looked at again."""
        self._pace()
        self.overview.hurry("overview")

    def on_app_blur(self) -> None:
        """Another window: read less often."""
        self._pace()


def message_of(error: BaseException | None) -> str:
    """An error for a person: the text of a SiaError, else its class and text on one line."""
    if isinstance(error, SiaError):
        return printable(error.render())
    return one_line(f"{type(error).__name__}: {error}", 300)


def run(home: Home, view: str | None = None, ident: str = "", *, read_only: bool = False, mouse: bool = True) -> int:
    """Run the dashboard on this terminal until the person leaves; returns the exit code.

    Raises ConfigError for a `sia.toml` that can't be used, UsageError for an unknown view.
    """
    settings = load_settings(home.checkout).watch
    known = [each.TITLE for each in VIEWS]
    chosen = view or ("detail" if ident else "instances")
    if chosen not in known:
        raise UsageError(f"no view {chosen!r}", fix=f"one of {', '.join(known)}")
    app = WatchApp(home, chosen, ident, read_only=read_only, settings=settings)
    try:
        app.run(mouse=mouse and settings.mouse)
    finally:
        if app.last_resort is not None:
            app.last_resort.cancel()
    return app.return_value if app.return_value is not None else (app.return_code or 0)
