"""`sia watch`: the live dashboard; off a terminal, or with `--once`, the same panels as plain text."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from orchestrator.errors import Failed

View = Literal["instances", "campaign", "detail", "compare", "generations", "events", "sandbox"]


def watch(
    ident: Annotated[str, Parameter(name="ID")] = "",
    other: Annotated[str, Parameter(name="OTHER")] = "",
    /,
    *,
    view: View | None = None,
    once: bool = False,
    read_only: bool = False,
    no_mouse: bool = False,
) -> int:
    """Watch the instances, understand what they do, step in.

    Several can watch at the same time, also over ssh; none slows what runs. Off a terminal it prints once.

    Parameters
    ----------
    ident
        What to show: an instance or a trial (detail, compare, sandbox), a campaign (campaign).
    other
        The trial to compare with (default: the baseline's of the same task and repeat).
    view
        The view to begin with.
    once
        Print it as text and end.
    read_only
        Refuse every step that would change something.
    no_mouse
        Leave the mouse to the terminal.
    """
    raise Failed("not there yet", where=sys.argv[0], fix="sia status")
