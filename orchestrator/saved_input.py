"""After a crash: how many bytes of the user's messages does the saved state hold?

After an orderly exit the pipe tells it exactly. After a kill nobody outside knows whether bytes that were taken from
the pipe had reached the saved state. The agent may say so: its state carries a running count of bytes that it took from
stdin (`stdin_taken`, optional). Only the difference to the count at the launch is used, within what was fed, so an
agent that counts wrongly can only harm its own input. Without a count, messages are fed again from where an exchange
proves that they were saved: never lost, at worst read twice.
"""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING

from orchestrator.data_layers import Levels
from orchestrator.messages import MessageLog

if TYPE_CHECKING:
    from orchestrator.generations import Data
    from orchestrator.home import Home

STATE_FILE = "state/agent.xml"
STATE_LIMIT = 64 * 1024 * 1024  # bytes of a state file that are read
_COUNT = re.compile(rb"""<[A-Za-z_][^<>]{0,2000}?\sstdin_taken=["']([0-9]{1,15})["']""")


def count_taken(home: Home, data: Data) -> int | None:
    """The agent's own count of bytes taken from stdin, in the state that the next launch finds; None = not told."""
    from sandbox.errors import SiaError
    from sandbox.layers import read_layered

    levels = Levels(home)
    lowers = levels.lowers(data.stack, "data")
    upper = levels.upper(data.upper, "data")
    try:
        content = read_layered(lowers, upper if upper.is_dir() else None, STATE_FILE, STATE_LIMIT)
    except FileNotFoundError:
        return 0  # no state yet: an agent that counts begins at 0
    except (OSError, SiaError):
        return None
    found = _COUNT.search(content[:16384])
    return int(found[1]) if found else None


def after_crash(home: Home, connection: sqlite3.Connection, nonce: str, data: Data, fed: int | None = None) -> int:
    """Offset in the message log from which the next launch is fed.

    `fed`: end of what was fed; where nobody knows it any more, that is the end of the log at most.
    """
    row = connection.execute("SELECT stdin_start, stdin_count FROM launch WHERE nonce = ?", (nonce,)).fetchone()
    proved = data.stdin_offset
    now = count_taken(home, data)
    if row is None or row["stdin_count"] is None or now is None or now < row["stdin_count"]:
        return proved
    told = int(row["stdin_start"]) + now - int(row["stdin_count"])
    most = MessageLog(home.main / "messages.log").size() if fed is None else fed
    return max(proved, min(told, most))
