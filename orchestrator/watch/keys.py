"""Keys of `sia watch`: every action has a name, its keys, and a word for the footer; `[watch.keys]` remaps them.

Imports next to nothing: `sia.toml` is checked against it by every command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ALIASES = {
    "esc": "escape",
    "return": "enter",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "del": "delete",
    "ins": "insert",
    " ": "space",
}
NAMED = {
    *("enter", "escape", "space", "tab", "shift+tab", "backspace", "delete", "insert", "home", "end"),
    *("up", "down", "left", "right", "pageup", "pagedown", *(f"f{number}" for number in range(1, 13))),
}
SHOWN = {
    "escape": "esc",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "shift+tab": "S-tab",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}
QUIT_ALWAYS = "ctrl+c"  # can't be taken away: a bad key map must not lock anybody in
# The terminal sends the same byte for both; a key map must not tell them apart.
SAME = {"ctrl+i": "tab", "ctrl+m": "enter", "ctrl+j": "enter", "ctrl+h": "backspace"}


@dataclass(frozen=True)
class Action:
    """`word` is for the footer, `text` for the help and the palette; `steps` marks those that change something."""

    name: str
    keys: tuple[str, ...]
    word: str
    text: str
    group: str
    steps: bool = False


def _group(group: str, *rows: tuple[str, str, str, str], steps: bool = False) -> tuple[Action, ...]:
    return tuple(Action(name, tuple(keys.split()), word, text, group, steps) for name, keys, word, text in rows)


ACTIONS: tuple[Action, ...] = (
    *_group(
        "Views",
        ("instances", "1", "instances", "what runs now"),
        ("campaign", "2", "campaign", "a campaign: progress, matrix, verdicts, trials"),
        ("compare", "3", "compare", "two trials side by side"),
        ("generations", "4", "generations", "the ledger, and what each promotion changed"),
        ("events", "5", "events", "what happened"),
        ("sandbox", "6", "sandbox", "what an instance changed on its disk"),
    ),
    *_group(
        "Everywhere",
        ("open", "enter", "open", "open what the cursor is on"),
        ("back", "escape", "back", "go back; drop the filter first"),
        ("filter", "/", "filter", "show only lines with these words; in a text: search"),
        ("search_next", "n", "next match", "next match of the search"),
        ("search_previous", "N", "previous match", "match before"),
        ("next_pane", "tab", "pane", "next pane"),
        ("previous_pane", "shift+tab", "pane before", "pane before"),
        ("copy", "y", "copy", "copy the id to the clipboard (where the terminal allows it)"),
        ("theme", "t", "theme", "colours: the terminal's, dark, light"),
        ("redraw", "ctrl+l", "redraw", "draw the whole screen again"),
        ("help", "?", "help", "all keys"),
        ("palette", ":", "command", "find any command by name"),
        ("suspend", "ctrl+z", "to the shell", "put the dashboard in the background (fg brings it back)"),
        ("quit", "q", "quit", "leave; whatever runs goes on"),
    ),
    *_group(
        "Moving",
        ("down", "j down", "down", "a line down"),
        ("up", "k up", "up", "a line up"),
        ("half_down", "ctrl+d", "half a page down", "half a page down"),
        ("half_up", "ctrl+u", "half a page up", "half a page up"),
        ("page_down", "pagedown ctrl+f", "page down", "a page down"),
        ("page_up", "pageup ctrl+b", "page up", "a page up"),
        ("top", "g home", "top", "first line"),
        ("bottom", "G end", "bottom", "last line; a growing text is followed from there"),
        ("left", "left", "left", "scroll left; fold in a tree"),
        ("right", "right", "right", "scroll right; unfold in a tree"),
    ),
    *_group(
        "Iterations",
        ("previous_iteration", "h", "prev", "iteration before"),
        ("next_iteration", "l", "next", "next iteration"),
        ("first_iteration", "H", "first", "first iteration"),
        ("last_iteration", "L", "last", "last iteration; then follows new ones"),
        ("fold", "space", "fold", "fold or unfold the element"),
        ("fold_all", "z", "fold all", "fold or unfold everything"),
    ),
    *_group(
        "Tables",
        ("sort", "o", "sort", "sort by the next column"),
        ("reverse", "O", "reverse", "reverse the order"),
        ("next_campaign", "]", "next campaign", "next campaign"),
        ("previous_campaign", "[", "campaign before", "campaign before"),
        ("mark", "c", "compare", "mark this trial; the second mark compares the two"),
        ("divergence", "d", "divergence", "jump to where the two first differ"),
        ("disk", "D", "disk", "what this instance changed on its disk"),
    ),
    *_group(
        "Stepping in",
        ("kill", "K", "kill", "end an instance now"),
        ("pause", "p", "pause", "stop an instance's processes, or let them go on"),
        ("message", "m", "message", "send an instance a message"),
        ("stop", "s", "stop", "stop a campaign: what runs finishes, nothing new starts"),
        ("rerun", "r", "rerun", "run a trial without a valid result again"),
        ("promote", "P", "promote", "promote a candidate"),
        ("rollback", "R", "roll back", "go back to a generation"),
        steps=True,
    ),
)
BY_NAME: dict[str, Action] = {action.name: action for action in ACTIONS}


class KeyFault(ValueError):
    """A `[watch.keys]` that can't be used. The text names the entry."""


def canonical(key: str) -> str:
    """The one way in which a key is written inside: a printable character as itself, else a name (`ctrl+d`, `enter`).

    Raises KeyFault for what no terminal sends.
    """
    if len(key) == 1 and key.isprintable() and key != " ":
        return key
    *modifiers, name = key.lower().split("+")
    name = ALIASES.get(name, name)
    if modifiers == ["ctrl"] and len(name) == 1 and name.isascii() and name.isalpha():
        return SAME.get(f"ctrl+{name}", f"ctrl+{name}")
    whole = "+".join([*modifiers, name])
    if whole in NAMED:
        return whole
    raise KeyFault(f"{key!r} is no key (a character, or a name like ctrl+d, enter, esc, tab, f5, pgdn)")


def shown(key: str) -> str:
    """A key as a person reads it."""
    if key.startswith("ctrl+"):
        return "^" + key[5:]
    return SHOWN.get(key, key)


class Keymap:
    """Which key does what. Each key has one meaning in the whole program, so that no view surprises."""

    def __init__(self, changes: Mapping[str, str | Iterable[str]] | None = None) -> None:
        """`changes`: action → its keys instead of the default ones (none at all: an empty list).

        Raises KeyFault: an unknown action, a key used twice, or no key at all to leave.
        """
        self.keys: dict[str, tuple[str, ...]] = {action.name: action.keys for action in ACTIONS}
        for name, given in (changes or {}).items():
            if name not in BY_NAME:
                raise KeyFault(f"{name}: no such action (known: {', '.join(BY_NAME)})")
            wanted = [given] if isinstance(given, str) else list(given)
            try:
                self.keys[name] = tuple(dict.fromkeys(canonical(key) for key in wanted))
            except KeyFault as fault:
                raise KeyFault(f"{name}: {fault}") from None
        self.actions: dict[str, str] = {}
        changed = set(changes or {})
        for name in sorted(self.keys, key=lambda each: each in changed):  # so that a changed entry is the one named
            for key in self.keys[name]:
                if key == QUIT_ALWAYS:
                    raise KeyFault(f"{name}: ctrl+c always leaves; take another key")
                if key in self.actions:
                    raise KeyFault(f"{name}: the key {shown(key)} is used twice, {self.actions[key]} has it too")
                self.actions[key] = name

    def action(self, key: str, character: str | None) -> str | None:
        """The action of a key event: `key` as Textual names it, `character` if it prints one."""
        if character is not None and character.isprintable() and character != " ":
            return self.actions.get(character)
        return self.actions.get(SAME.get(key, key))

    def hint(self, name: str) -> str:
        """The first key of an action as a person reads it; empty if it has none."""
        keys = self.keys[name]
        return shown(keys[0]) if keys else ""
