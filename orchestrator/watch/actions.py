"""What the actions do that belong to no view. Functions of the application, by the action's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.untrusted import one_line
from orchestrator.watch import dialogs

if TYPE_CHECKING:
    from orchestrator.watch.app import WatchApp

THEMES = {"terminal": "ansi-dark", "dark": "textual-dark", "light": "textual-light"}


def _quit(app: WatchApp) -> None:
    """Leave."""
    app.exit(0)


def _help(app: WatchApp) -> None:
    """All keys."""
    app.push_screen(dialogs.Help(app.keymap, app.view.TITLE))


def _palette(app: WatchApp) -> None:
    """Any command by name."""

    def chosen(name: str | None) -> None:
        if name:
            app.act(name)

    app.push_screen(dialogs.Palette(app.keymap), chosen)


def _theme(app: WatchApp) -> None:
    """The terminal's colours, dark, light."""
    if app.no_color:
        app.say("no colours: NO_COLOR is set")
        return
    names = list(THEMES.values())
    app.theme = names[(names.index(app.theme) + 1) % len(names)]
    app.say(f"colours: {next(name for name, theme in THEMES.items() if theme == app.theme)}")


def _redraw(app: WatchApp) -> None:
    """Draw everything again, whatever another program wrote over it."""
    app.screen.refresh()
    for widget in app.main.walk_children():
        widget.refresh()


def _suspend(app: WatchApp) -> None:
    """To the shell."""
    app.action_suspend_process()


def _copy(app: WatchApp) -> None:
    """The id under the cursor."""
    name = app.view.target().name
    if name:
        app.copy_to_clipboard(name)
    app.say(f"copied: {one_line(name)}" if name else "nothing here has an id")


def _search_next(app: WatchApp) -> None:
    """Next match."""
    app.view.search(1)


def _search_previous(app: WatchApp) -> None:
    """Match before."""
    app.view.search(-1)


def _mark(app: WatchApp) -> None:
    """Mark a trial; the second one is compared with it."""
    target = app.view.target()
    name = target.trial or (target.instance.id if target.instance else None)
    if name is None:
        app.say("put the cursor on a trial or an instance to compare it")
    elif app.marked is None or app.marked == name:
        app.marked = None if app.marked == name else name
        hint = app.keymap.hint("mark")
        app.say(f"{name} is marked: {hint} on another one compares the two" if app.marked else "no mark")
    else:
        first, app.marked = app.marked, None
        app.go("compare", f"{first} {name}")


def _disk(app: WatchApp) -> None:
    """What it changed on its disk."""
    about = app.about("sandbox")
    if about:
        app.go("sandbox", about)
    else:
        app.say("put the cursor on an instance or a trial")


DO: dict[str, Callable[[WatchApp], None]] = {
    "quit": _quit,
    "help": _help,
    "palette": _palette,
    "theme": _theme,
    "redraw": _redraw,
    "suspend": _suspend,
    "copy": _copy,
    "search_next": _search_next,
    "search_previous": _search_previous,
    "mark": _mark,
    "disk": _disk,
}
