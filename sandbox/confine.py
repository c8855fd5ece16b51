"""`confine CMD…`: run a command that may write only in the current directory and /tmp (Landlock).

Runs as a script inside the verifier's sandbox (`python -I -S confine.py CMD…`): standard library only.
Exit 126 with a reason where Landlock is missing; else the command's own exit code (the process is replaced)."""

from __future__ import annotations
