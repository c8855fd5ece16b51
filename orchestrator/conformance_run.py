"""One launch of the conformance check: answers go in, what is asked next comes out, and how it ended."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.conformance_peer import Peer, Prompt, Silent
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from orchestrator.instances import Instance
    from sandbox.process import Outcome

NEXT_SECONDS = 40.0  # from an answer to the next request
# Whole words of letters: measurements, ids and counters change in every prompt, and have digits in them.
_WORD = re.compile(r"(?<!\w)[^\W\d]+(?!\w)")


@dataclass
class Run:
    """One launch, while it lasts."""

    instance: Instance
    peer: Peer
    out: bytearray
    log_file: Path

    @property
    def shown(self) -> str:
        """The last prompt."""
        return self.peer.prompts[-1].text

    def prompt(self, seconds: float) -> Prompt:
        """The next request for an answer. Raises Silent."""
        return self.peer.prompt(seconds)

    def ask(self, answer: str) -> Prompt:
        """Give an answer and wait for the request that follows it."""
        self.peer.answer(answer)
        return self.prompt(NEXT_SECONDS)

    def fail(self, code: str, message: str) -> Prompt:
        """Give a typed error instead of an answer and wait for the request that follows it."""
        self.peer.error(code, message)
        return self.prompt(NEXT_SECONDS)

    def told(self, answer: str) -> bool:
        """Give an answer that can't be carried out: whether the next prompt says anything that the last one did not.

        What it says, and where, is the agent's business. It may show its latest trouble alone, which then can look
        like the one before; so where nothing is new, an ordinary answer comes between, and it is tried once more.
        """
        before = self.shown
        if says_more(before, self.ask(answer).text):
            return True
        calm = self.ask("<reasoning>go on</reasoning>").text
        return says_more(calm, self.ask(answer).text)

    def last_answer(self) -> None:
        """An answer that nothing has to follow."""
        with contextlib.suppress(Silent):
            self.peer.answer("<reasoning>the last one</reasoning>")

    def printed(self, wanted: bytes) -> bool:
        """Whether standard output holds `wanted` within two seconds."""
        end = time.monotonic() + 2.0
        while wanted not in self.out and time.monotonic() < end:
            time.sleep(0.01)
        return wanted in self.out

    def why(self, silent: Silent) -> str:
        """Why no request came: how the process ended, and the end of its own log."""
        outcome = self.instance.wait(1.0)
        return (f"it ended with {ending(outcome)}" if outcome else str(silent)) + self.log()

    def log(self) -> str:
        """The last words of its standard error, for an explanation."""
        try:
            text = self.log_file.read_bytes()[-4000:].decode("utf-8", "replace").strip()
        except OSError:
            return ""
        return f"; its log ends: {one_line(text.splitlines()[-1])}" if text else ""


def says_more(before: str, after: str) -> bool:
    """Whether a prompt has any word more often than the one before it."""
    return bool(words(after) - words(before))


def words(text: str) -> Counter[str]:
    """How often each word occurs in a prompt."""
    return Counter(_WORD.findall(text))


def ending(outcome: Outcome) -> str:
    """How a process ended, in words."""
    if outcome.setup_error is not None:
        return f"a sandbox that could not be set up ({outcome.setup_error})"
    if outcome.limit is not None:
        return f"the limit {outcome.limit!r} reached"
    return f"signal {outcome.signal}" if outcome.signal is not None else f"exit code {outcome.exit_code}"
