"""The part of the conformance check that is about scripts and entries: one run, several answers (docs/contract.md)."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from orchestrator.conformance_peer import Prompt

FLOOD = 20_000_000  # bytes that a script prints
KEPT = 8_000_000  # characters of a prompt after that flood
TIMEOUT = 0.3  # seconds, as an attribute of an answer
_ID = re.compile(r"""\bid=(?:"|&quot;|')([^"'&<>\s]{1,64})(?:"|&quot;|')""")
# NUL, ESC, a byte that is no UTF-8, U+FFFE, the end of a CDATA section, EOT and NAK, markup.
_BYTES = r"\000\033[2J\377\357\277\276]]>\004\025<b>&amp;"


class Asking(Protocol):
    """A run that can be given an answer and shows what it asks next."""

    def ask(self, answer: str) -> Prompt:
        """Give an answer and wait for the request that follows it."""
        ...


class ScriptSteps:
    """`note` takes a check's number, whether it passed, and what was seen instead; `at` the number that is on now."""

    def __init__(
        self, note: Callable[[str, bool, str], object], at: Callable[[str], None], workdir: str, patience: float
    ) -> None:
        self._note, self._at, self._workdir, self._patience = note, at, workdir, patience
        self._mark = secrets.token_hex(4)

    def single(self, run: Asking) -> None:
        """Where a script runs, what it inherits, and that nothing it leaves behind is waited for."""
        self._at("7")
        number, mark = secrets.randbelow(10**6), self._mark
        script = f'pwd; echo "mark-{mark}-$(({number}+1))-"; echo "<$PYTHONPATH|$SIA_ENGINE_FD>"; sleep 25 &'
        begin = time.monotonic()
        text = run.ask(_script("single", script)).text
        seconds = time.monotonic() - begin
        self._note("7", seconds < self._patience, f"the next request came after {seconds:.0f} s")
        shown = f"mark-{mark}-{number + 1}-" in text
        self._note("6", shown and self._workdir in text, "the script's output is not in the next prompt")
        inherited = "/root/sia|" in text or re.search(r"\|\d+>|\|\d+&gt;", text) is not None
        self._note("8", shown and not inherited, "a script inherits them")

    def timeout(self, run: Asking) -> None:
        """A script that runs over its time."""
        self._at("7b")
        begin = time.monotonic()
        run.ask(_script("single", "sleep 25; sleep 25", f' timeout="{TIMEOUT}"'))
        seconds = time.monotonic() - begin
        self._note("7b", seconds < self._patience, f"the next request came after {seconds:.0f} s")

    def flood(self, run: Asking) -> None:
        """More output than any prompt can hold."""
        self._at("7c")
        text = run.ask(_script("single", f"head -c {FLOOD} /dev/zero | tr '\\0' x")).text
        self._note("7c", len(text) < KEPT, f"after {FLOOD:,} bytes of output the prompt has {len(text):,} characters")

    def any_bytes(self, run: Asking) -> None:
        """Output that is not text."""
        self._at("13")
        number = secrets.randbelow(10**6)
        script = f"printf 'from-%d-{_BYTES}-to-%d' $(({number}+1)) $(({number}+2))"
        text = run.ask(_script("single", script)).text
        shown = f"from-{number + 1}-" in text and f"-to-{number + 2}" in text
        self._note("13", shown, "what was printed before and after them is not in the next prompt")

    def repeat(self, run: Asking) -> None:
        """A script that is to run in every iteration."""
        self._at("6b")
        file = f"/tmp/{self._mark}"
        first = run.ask(_script("repeat", f'echo x >>{file}; echo "times-{self._mark}-$(wc -l <{file} | tr -d " ")-"'))
        run.ask("<reasoning>one iteration</reasoning>")
        last = run.ask("<reasoning>and one more</reasoning>")
        counts = [self._times(prompt.text) for prompt in (first, last)]
        fault = f"its output showed run {counts[0]}, and two iterations later run {counts[1]}"
        self._note("6b", 0 < counts[0] < counts[1], fault)

    def delete(self, run: Asking) -> None:
        """An entry that goes, if entries show ids; and one that never was."""
        self._at("26")
        number = secrets.randbelow(10**6)
        text = run.ask(_script("single", f'echo "gone-$(({number}+1))-"')).text
        wanted = f"gone-{number + 1}-"
        ids = _ID.findall(text.partition(wanted)[0]) if wanted in text else []
        run.ask(f'<delete id="nope-{self._mark}"/>')
        if not ids:
            self._note("26", True, "not asked: no id is shown before an output")
            return
        left = run.ask(f'<delete id="{ids[-1]}"/>').text
        self._note("26", wanted not in left, f"after <delete id={ids[-1]!r}/> its output is still shown")

    def _times(self, text: str) -> int:
        return max((int(number) for number in re.findall(rf"times-{self._mark}-(\d+)-", text)), default=0)


def _script(action: str, script: str, attributes: str = "") -> str:
    # CDATA ends at ]]>, so a script that holds one is escaped instead
    escaped = script.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<{action}{attributes}>{escaped if ']]>' in script else f'<![CDATA[{script}]]>'}</{action}>"
