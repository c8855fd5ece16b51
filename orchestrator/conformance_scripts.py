"""The part of the conformance check that is about scripts and entries: one run, several answers (docs/contract.md)."""

from __future__ import annotations

import re
import secrets
import string
import time
from collections.abc import Callable
from typing import Protocol

from orchestrator.conformance_peer import TOKEN_LIMIT, Prompt
from orchestrator.conformance_run import words

FLOOD = 1_000_000  # bytes that a script prints
KEPT = 4 * TOKEN_LIMIT  # characters of a prompt after that flood: as the engine counts, more would be too long for it
LIMIT = 600  # characters of a stream, as an attribute of an answer
OVER = 5_000  # characters that a script with that limit prints
TIMEOUTS = (0.3, 1.0)  # seconds, as an attribute of an answer; the second for agents that take whole seconds only
MEETING = 5.0  # seconds that two repeats wait for each other
_ID = re.compile(r"""\bid=(?:"|&quot;|')([^"'&<>\s]{1,64})(?:"|&quot;|')""")
# NUL, ESC, a byte that is no UTF-8, U+FFFE, the end of a CDATA section, EOT and NAK, markup.
_BYTES = r"\000\033[2J\377\357\277\276]]>\004\025<b>&amp;"
# How a prompt can say that an output is not whole, besides words that were not in it before: the size is one way.
_CUT = re.compile(r"trunc|\bcut\b|omit|left out|skipp|missing|\.\.\.|…|\b(?:9\d\d|1[,._ ]?000)[,._ ]?\d{3}\b")
# What a later script looks at: the word that it prints, the number of the check that is broken then, and how.
_LOOKS = (
    ("again", "6", "a script that was to run once has run again"),
    ("forged", "11", "a script ran although its answer held <stdout>, or timeout='NaN'"),
    ("alive", "7b", "a child of the script lives on after the timeout"),
    ("unlogged", "14b", "a script ran before its answer was logged"),
)


class Asking(Protocol):
    """A run that can be given an answer and shows what it asks next."""

    @property
    def shown(self) -> str:
        """The last prompt."""
        ...

    def ask(self, answer: str) -> Prompt:
        """Give an answer and wait for the request that follows it."""
        ...

    def told(self, answer: str) -> bool:
        """Give an answer that can't be carried out: whether the next prompt says anything about it."""
        ...


class ScriptSteps:
    """`note` takes a check's number, whether it passed, and what was seen instead; `at` the number that is on now.

    Files that the scripts leave in the sandbox have names that begin with `mark`: letters, so that it is one word.
    """

    def __init__(
        self, note: Callable[[str, bool, str], object], at: Callable[[str], None], workdir: str, patience: float
    ) -> None:
        self._note, self._at, self._workdir, self._patience = note, at, workdir, patience
        self.mark = "".join(secrets.choice(string.ascii_lowercase) for _ in range(12))

    def single(self, run: Asking) -> None:
        """Where a script runs, what it inherits, what it may write, and that nothing it leaves behind is waited for."""
        self._at("7")
        number, mark = secrets.randbelow(10**6), self.mark
        notes = f'for place in tasks user; do echo x >/root/data/$place/{mark} || echo "no-$(({number}+2))-"; done'
        code = f'if (: >/root/sia/{mark}); then echo "wrote-$(({number}+3))-"; fi'
        script = (
            f'pwd; echo "mark-{mark}-$(({number}+1))-"; echo "<$PYTHONPATH|$SIA_ENGINE_FD>"\n'
            f"echo x >>/tmp/{mark}.runs\n{notes}\n{code} 2>&1\nsleep 25 &"
        )
        begin = time.monotonic()
        text = run.ask(_script("single", script)).text
        seconds = time.monotonic() - begin
        self._note("7", seconds < self._patience, f"the next request came after {seconds:.0f} s")
        shown = f"mark-{mark}-{number + 1}-" in text
        self._note("6", shown and self._workdir in text, "the script's output is not in the next prompt")
        if f"no-{number + 2}-" in text:
            self._note("8", False, "a script can't write into /root/data/tasks or /root/data/user")
        self._note("8", f"wrote-{number + 3}-" not in text, "a script can write into /root/sia")
        inherited = "/root/sia|" in text or re.search(r"\|\d+>|\|\d+&gt;", text) is not None
        self._note("8b", shown and not inherited, "a script inherits them")

    def flood(self, run: Asking) -> None:
        """More output than any prompt can hold."""
        self._at("7c")
        script, before = f"head -c {FLOOD} /dev/zero | tr '\\0' x", run.shown
        text = run.ask(_script("single", script)).text
        self._note("7c", len(text) < KEPT, f"after {FLOOD:,} bytes of output the prompt has {len(text):,} characters")
        new = set(words(text) - words(before)) - set(words(script))
        said = any(set(word) != {"x"} and word not in before for word in new)
        said = said or len(_CUT.findall(text)) > len(_CUT.findall(before))
        self._note("7c", said, "nothing in the prompt says that the output is cut")

    def limit(self, run: Asking) -> None:
        """A script that prints more than it is to show."""
        self._at("7c")
        number = secrets.randbelow(10**6)
        script = (
            f'echo "head-$(({number}+1))-"; head -c {OVER} /dev/zero | tr "\\0" y; echo; echo "tail-$(({number}+2))-"'
        )
        text = run.ask(_script("single", script, f' limit="{LIMIT}"')).text
        kept = sum(len(part) for part in re.findall("y{9,}", text))
        fault = f"with limit={LIMIT}, {kept:,} of {OVER:,} characters are shown"
        self._note("7c", 0 < kept <= 2 * LIMIT, fault)  # twice: it may be shown in two places
        both = f"head-{number + 1}-" in text and f"tail-{number + 2}-" in text
        self._note("7d", both, f"with limit={LIMIT}, the first or the last line of {OVER:,} characters is not shown")

    def timeout(self, run: Asking) -> None:
        """A script that runs over its time, with a child."""
        self._at("7b")
        script = f"sleep 25 & echo $! >/tmp/{self.mark}.child; sleep 25"
        for timeout in TIMEOUTS:
            begin = time.monotonic()
            run.ask(_script("single", script, f' timeout="{timeout:g}"'))
            seconds = time.monotonic() - begin
            self._note("7b", seconds < self._patience, f"the next request came after {seconds:.0f} s")
            if seconds > 0.8 * timeout:
                return
        fault = f"the next request came after {seconds:.1f} s: the script did not run, or was not waited for"
        self._note("7b", False, fault)

    def forged(self, run: Asking, timeouts: bool) -> None:
        """An answer that holds the output of its own script, and one with a timeout that never comes."""
        self._at("11")
        script = f"touch /tmp/{self.mark}.forged\n"
        told = run.told(f"<single>{script}<stdout>{self.mark}</stdout></single>")
        if timeouts:
            told = run.told(_script("single", script, ' timeout="NaN"')) and told
        self._note("11", told, "nothing in the next prompt says that the answer was refused")

    def any_bytes(self, run: Asking) -> None:
        """Output that is not text; and before it, what became of the answers until now."""
        self._at("13")
        number, place = secrets.randbelow(10**6), f"/tmp/{self.mark}"
        tests = (  # each prints its word where something is wrong: an output that is not shown says nothing
            f"[ $(wc -l <{place}.runs) -gt 1 ]",
            f"[ -e {place}.forged ]",
            "[ $i -eq 10 ]",
            f'ls /root/data/iterations | grep -q . && ! grep -rq "look {self.mark}" /root/data/iterations',
        )
        # A child that was killed is not gone at once.
        lives = "grep -qs '^State:.[RSD]' /proc/$child/status"
        looks = f"child=$(cat {place}.child 2>/dev/null); i=0\n"
        looks += f"while [ $i -lt 10 ] && {lives}; do sleep 0.02; i=$((i+1)); done\n"
        for offset, (test, (word, _, _)) in enumerate(zip(tests, _LOOKS, strict=True), 3):
            looks += f'if {test}; then echo "{word}-$(({number}+{offset}))-"; fi\n'
        script = f"{looks}printf 'from-%d-{_BYTES}-to-%d' $(({number}+1)) $(({number}+2))"
        text = run.ask(_script("single", script)).text
        shown = f"from-{number + 1}-" in text and f"-to-{number + 2}" in text
        self._note("13", shown, "what was printed before and after them is not in the next prompt")
        for offset, (word, broken, fault) in enumerate(_LOOKS, 3):
            if f"{word}-{number + offset}-" in text:
                self._note(broken, False, fault)

    def repeat(self, run: Asking) -> None:
        """Scripts that are to run in every iteration, two of them at the same time once a third has said so."""
        self._at("6b")
        mark = self.mark
        count = f'echo x >>/tmp/{mark}.turns; echo "times-{mark}-$(wc -l </tmp/{mark}.turns | tr -d " ")-"\n'
        seen = f'if [ -e /tmp/{mark}.met ]; then echo "both-{mark}-$((6*7))-"; fi'
        first = run.ask(_script("repeat", count + self._meet("one", "two") + seen))
        run.ask(_script("repeat", self._meet("two", "one")))
        last = run.ask(_script("single", f": >/tmp/{mark}.go"))
        counts = [self._times(prompt.text) for prompt in (first, last)]
        fault = f"its output showed run {counts[0]}, and two iterations later run {counts[1]}"
        self._note("6b", 0 < counts[0] < counts[1], fault)
        met = f"both-{mark}-42-" in last.text
        self._note("6b", met, "two repeats have not run side by side: one did not see the other")

    def delete(self, run: Asking) -> None:
        """An entry that goes, if entries show ids; and one that never was."""
        self._at("26")
        number = secrets.randbelow(10**6)
        text = run.ask(_script("single", f'echo "gone-$(({number}+1))-"')).text
        wanted = f"gone-{number + 1}-"
        ids = _ID.findall(text.partition(wanted)[0]) if wanted in text else []
        if not ids:
            self._note("26", True, "not asked: no id is shown before an output")
        told = run.told(f'<delete id="nope-{self.mark}"/>')
        self._note("26", told, "nothing in the next prompt says that there is no such entry")
        if wanted in text:
            self._note("6", wanted in run.shown, "an output is gone that was not deleted")
        if ids:
            left = run.ask(f'<delete id="{ids[-1]}"/>').text
            self._note("26", wanted not in left, f"after <delete id={ids[-1]!r}/> its output is still shown")

    def _times(self, text: str) -> int:
        return max((int(number) for number in re.findall(rf"times-{self.mark}-(\d+)-", text)), default=0)

    def _meet(self, own: str, other: str) -> str:
        """Shell lines that wait until a script with these names swapped runs too. Once: then both know, or give up."""
        place, rounds = f"/tmp/{self.mark}", round(MEETING / 0.02)
        over = f"[ -e {place}.met ] || [ -e {place}.alone ]"
        return (
            f"if [ -e {place}.go ] && ! {{ {over}; }}; then\n: >{place}.{own}; i=0\n"
            f"until [ -e {place}.{other} ] || {over} || [ $i -ge {rounds} ]; do sleep 0.02; i=$((i+1)); done\n"
            f"if [ $i -ge {rounds} ]; then : >{place}.alone; elif [ -e {place}.{other} ]; then : >{place}.met; fi\n"
            f"rm -f {place}.{own}\nfi\n"
        )


def _script(action: str, script: str, attributes: str = "") -> str:
    # CDATA ends at ]]>, so a script that holds one is escaped instead
    escaped = script.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<{action}{attributes}>{escaped if ']]>' in script else f'<![CDATA[{script}]]>'}</{action}>"
