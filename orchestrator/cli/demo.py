"""`sia demo`: a campaign, a promotion and a rollback on shipped examples."""

from __future__ import annotations

import signal
from types import FrameType


def demo() -> int:
    """Show a whole story in under two minutes: a campaign, a promotion, and a rollback that needs nobody.

    All of it happens in a throw-away repository below `.sia/`, made from the HEAD commit of this checkout. Nothing else
    is written. The folder of an earlier demo is removed.
    """
    from orchestrator.demo import stage
    from orchestrator.demo.story import Story
    from orchestrator.demo.voice import Voice
    from orchestrator.home import open_home

    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    # The commands run in process groups of their own, which a terminal with `tostop` would stop when they write.
    before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with stage.build(open_home()) as built:
            Story(built, Voice()).tell()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ended from outside is ended as by Ctrl-C: the commands that run are stopped in order."""
    raise KeyboardInterrupt
