"""Dialogs: what will happen (then yes or no), a message to show, all keys, the palette."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from orchestrator.watch.bars import Bar
from orchestrator.watch.keys import ACTIONS, Action, Keymap, shown
from orchestrator.watch.lines import Lines
from orchestrator.watch.sources import Texts, Wrapped, fold_words

if TYPE_CHECKING:
    from orchestrator.watch.app import WatchApp

MOVES = ("down", "up", "half_down", "half_up", "page_down", "page_up", "top", "bottom", "left", "right")
LOOKING = "looking at what would happen…"


@dataclass(frozen=True)
class Outlook:
    """What will happen, in sentences; `prompt`: what must be typed for it (a message, a reason)."""

    text: str
    prompt: str = ""


class Dialog(ModalScreen[str | None], inherit_bindings=False):
    """A box over the view. `result` of a dialog that was left is None."""

    AUTO_FOCUS = None
    WIDE = False

    def compose(self) -> ComposeResult:
        """Title, text, the keys."""
        with Vertical(id="box", classes="wide" if self.WIDE else ""):
            yield Bar("dialog-title")
            yield from self.middle()
            yield Bar("dialog-keys")

    def middle(self) -> ComposeResult:
        """What lies between title and keys."""
        yield Lines("dialog-text", cursor=False)

    @property
    def watch_app(self) -> WatchApp:
        """The application, with its type."""
        from orchestrator.watch.app import WatchApp

        assert isinstance(self.app, WatchApp)
        return self.app

    def title_is(self, text: str) -> None:
        """The line at the top."""
        self.query_one("#dialog-title", Bar).put(Text(text))

    def keys_are(self, *pairs: tuple[str, str]) -> None:
        """The line at the bottom: what can be pressed now."""
        line = Text()
        for key, word in pairs:
            line.append(f" {key}", "bold reverse").append(" ", "reverse").append(f"{word}  ")
        self.query_one("#dialog-keys", Bar).put(line)

    def text_is(self, text: str) -> None:
        """Show a text; the box grows with it."""
        pane = self.query_one("#dialog-text", Lines)
        source = Wrapped(text, words=True)
        width = max(20, min(100 if self.WIDE else 76, self.app.size.width * 96 // 100) - 5)
        pane.styles.height = max(1, min(source.lines(width), self.app.size.height * 9 // 10 - 7))
        pane.show(source, keep=False)

    def on_key(self, event: events.Key) -> None:
        """Keys of a dialog: its own first, then scrolling."""
        used = self.pressed(event)
        line = next((each for each in self.query(Input) if not each.disabled), None)
        if line is not None and not used:
            if self.focused is not line:  # on a busy machine the focus may come later than the first key
                self.set_focus(line)
            if event.key == "enter":
                self.entered(line.value)
            elif event.is_printable:  # it was typed before the line had the focus
                line.insert_text_at_cursor(event.character or "")
            else:
                return  # the line may have a use for it
            used = True
        event.stop()
        event.prevent_default()
        if used:
            return
        action = self.watch_app.keymap.action(event.key, event.character)
        if action in MOVES:
            self.query_one(Lines).act(action)
        elif action in ("back", "quit"):
            self.dismiss(None)

    def entered(self, text: str) -> None:
        """enter in the line of text."""

    def pressed(self, event: events.Key) -> bool:
        """A key that this dialog knows."""
        if event.key == "escape":
            self.dismiss(None)
            return True
        return False


class Confirm(Dialog):
    """What will happen, read from the same text as `--dry-run`; then y or enter, or esc.

    Where something must be typed the dialog ends with that text, else with "yes".
    """

    def __init__(self, title: str, explain: Callable[[], Outlook]) -> None:
        super().__init__(id="confirm")
        self._title, self._explain = title, explain
        self._prompt = self._typed = ""
        self.ready = self._failed = False

    def middle(self) -> ComposeResult:
        """The text, and a line to type where one is asked for."""
        yield Lines("dialog-text", cursor=False)
        yield Input(id="dialog-input", compact=True, disabled=True)

    def on_mount(self) -> None:
        """Ask what would happen."""
        self.title_is(self._title)
        self.text_is(LOOKING)
        self.keys_are(("esc", "cancel"))
        self.watch_app.in_thread(self._explain, self._explained)

    def _explained(self, outlook: Outlook | None, error: BaseException | None) -> None:
        from orchestrator.watch.app import message_of

        if not self.is_attached:
            return
        if outlook is None:
            self._failed = True
            self.text_is(message_of(error))
            self.keys_are(("esc", "close"))
            return
        self.ready, self._prompt = True, outlook.prompt
        self.text_is(outlook.text)
        if self._prompt:
            line = self.query_one("#dialog-input", Input)
            line.placeholder, line.disabled, line.value = outlook.prompt, False, self._typed
            line.cursor_position = len(line.value)
            self.set_focus(line)
            self.keys_are(("enter", "do it"), ("esc", "cancel"))
        else:
            self.keys_are(("y", "or enter: do it"), ("esc", "cancel"))

    def pressed(self, event: events.Key) -> bool:
        """y and enter mean yes, once it is known what to. Until then nothing but esc means anything."""
        if not self.ready and not self._failed and event.key != "escape":
            if event.is_printable:
                self._typed += event.character or ""
            return True
        if not self._prompt and (event.character in ("y", "Y") or event.key == "enter"):
            if self.ready:
                self.dismiss("yes")
            return True
        if not self._prompt and event.character in ("n", "N"):
            self.dismiss(None)
            return True
        return super().pressed(event)

    def entered(self, text: str) -> None:
        """What was asked for is there."""
        if self.ready and text.strip():
            self.dismiss(text)


class Say(Dialog):
    """A text to read, to close with esc or enter."""

    def __init__(self, title: str, text: str) -> None:
        super().__init__(id="say")
        self._title, self._text = title, text

    def on_mount(self) -> None:
        """Show it."""
        self.title_is(self._title)
        self.text_is(self._text)
        self.keys_are(("esc", "close"))

    def pressed(self, event: events.Key) -> bool:
        """enter closes too."""
        if event.key == "enter":
            self.dismiss(None)
            return True
        return super().pressed(event)


class Help(Dialog):
    """All keys by group, as they are mapped now."""

    WIDE = True

    def __init__(self, keymap: Keymap, view: str) -> None:
        super().__init__(id="help")
        self._keymap, self._view = keymap, view

    def on_mount(self) -> None:
        """Two columns of words, one of keys."""
        self.title_is("Keys")
        self.keys_are(("j k", "scroll"), ("esc", "close"))
        lines = self._lines()
        pane = self.query_one("#dialog-text", Lines)
        pane.styles.height = max(1, min(len(lines), self.app.size.height * 9 // 10 - 7))
        pane.show(Texts(lines), keep=False)

    def _lines(self) -> list[Text]:
        lines: list[Text] = []
        group = ""
        room = max(20, min(100, self.app.size.width * 96 // 100) - 38)
        for action in ACTIONS:
            if action.group != group:
                if group:
                    lines.append(Text(""))
                group = action.group
                lines.append(Text(group, "bold underline"))
            keys = " ".join(shown(key) for key in self._keymap.keys[action.name]) or "–"
            first, *more = fold_words(action.text, room)
            lines.append(Text.assemble((f"{keys:<11}", "bold"), f"{action.name:<20} {first}"))
            lines += [Text(f"{'':<32}{line}") for line in more]
        lines.append(Text(""))
        hint = '^c always leaves. Other keys: sia.toml, [watch.keys], for example kill = "x"'
        return lines + [Text(line) for line in fold_words(hint, room + 30)]

    def pressed(self, event: events.Key) -> bool:
        """? and enter close too."""
        if event.key == "enter" or self._keymap.action(event.key, event.character) == "help":
            self.dismiss(None)
            return True
        return super().pressed(event)


class Palette(Dialog):
    """Commands by name: type some letters, enter runs the one under the cursor."""

    def __init__(self, keymap: Keymap) -> None:
        super().__init__(id="palette")
        self._keymap = keymap
        self._found: list[Action] = []
        self._sought = ""

    def middle(self) -> ComposeResult:
        """What is typed, and what fits."""
        yield Input(id="dialog-input", placeholder="a command, or a part of its name", compact=True)
        yield Lines("dialog-text", empty="no such command")

    def on_mount(self) -> None:
        """All commands at first."""
        self.title_is("Command")
        self.keys_are(("↑ ↓", "choose"), ("enter", "run"), ("esc", "close"))
        pane = self.query_one("#dialog-text", Lines)
        pane.styles.height = max(3, min(14, self.app.size.height - 9))
        pane.active = True
        self._find("")
        self.query_one("#dialog-input", Input).focus()

    def _find(self, typed: str) -> None:
        self._sought, self._found = typed, match(typed)
        lines = []
        for action in self._found:
            keys = " ".join(shown(key) for key in self._keymap.keys[action.name])
            lines.append(Text.assemble((f"{action.name:<20}", "bold"), f"{keys:<10} ", action.text))
        self.query_one("#dialog-text", Lines).show(Texts(lines), keep=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Fewer or more fit."""
        event.stop()
        if event.value != self._sought:
            self._find(event.value)

    def entered(self, text: str) -> None:
        """Run it; what was typed last may not have been looked for yet."""
        if text != self._sought:
            self._find(text)
        self._run()

    def on_lines_opened(self) -> None:
        """A click on it."""
        self._run()

    def _run(self) -> None:
        pane = self.query_one("#dialog-text", Lines)
        if self._found:
            self.dismiss(self._found[pane.cursor].name)

    def pressed(self, event: events.Key) -> bool:
        """The cursor moves while the line of text has the focus."""
        moves = {"down": "down", "up": "up", "pagedown": "page_down", "pageup": "page_up", "ctrl+n": "down"}
        moves["ctrl+p"] = "up"
        if event.key in moves:
            self.query_one("#dialog-text", Lines).act(moves[event.key])
            return True
        return super().pressed(event)


def match(typed: str) -> list[Action]:
    """Actions that fit what was typed: name begins with it, name or text holds it, letters in order; in this order."""
    words = typed.strip().lower()
    if not words:
        return list(ACTIONS)
    ranked: list[tuple[int, int, Action]] = []
    for place, action in enumerate(ACTIONS):
        name = action.name.replace("_", " ")
        if action.name.startswith(words) or name.startswith(words):
            rank = 0
        elif words in name:
            rank = 1
        elif words in action.text.lower():
            rank = 2
        elif _in_order(words, name):
            rank = 3
        else:
            continue
        ranked.append((rank, place, action))
    return [action for _, _, action in sorted(ranked, key=lambda each: each[:2])]


def _in_order(letters: str, name: str) -> bool:
    rest = iter(name)
    return all(letter in rest for letter in letters if letter != " ")
