"""Text that an instance, a candidate or an engine wrote, made safe to show on a terminal.

A terminal obeys what it is sent: colours and cursor moves could paint a false verdict, OSC sequences set the clipboard
or the title, bidirectional marks show one thing and mean another. Everything that SIA prints and did not write itself
goes through here.
"""

from __future__ import annotations

import re

# Whole sequences first, so that "ESC [ 31 m" leaves no "[31m" behind: CSI; OSC, DCS, SOS, PM, APC up to their
# terminator, the next escape or the end of the line (an unfinished one would swallow what comes next); two-character
# escapes. Each part can be missing, so that nothing fails late and starts again: the time grows with the length alone.
_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
# Other controls (tab and newline stay), bidirectional marks and isolates, zero-width and invisible characters, line and
# paragraph separators, tag characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")
_LOOKED_AT = 20  # characters for each one that a line may have; what lies behind is not even cleaned


def printable(text: str | bytes) -> str:
    """`text` without terminal sequences and invisible or direction-changing characters; newlines and tabs stay.

    Bytes are read as UTF-8; what can't be decoded, and lone surrogates, become U+FFFD, so that the result can always be
    printed. A carriage return becomes a newline: alone it would overwrite the line.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _SURROGATES.sub("\ufffd", _HIDDEN.sub("", _SEQUENCES.sub("", text)))


def one_line(text: str | bytes, limit: int = 200) -> str:
    """`printable(text)` on a single line of at most `limit` characters, for table cells and messages."""
    most = _LOOKED_AT * limit
    line = " ".join(printable(text[:most]).split())
    return line if len(line) <= limit and len(text) <= most else line[: limit - 1] + "…"
