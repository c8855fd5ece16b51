"""What the agents of a sample home saw and said: contexts, answers and outputs, some of them hostile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.protocol import escape

SYSTEM = "You are an agent. You work in iterations: you see a context and answer with exactly one action.\n"
SCHEMA = (Path(__file__).parents[2] / "action_schema.xsd").read_text(encoding="utf-8")

# Everything a terminal, a markup language or a careless table could fall for. What is shown of it must be letters.
HOSTILE = (
    "\x1b[2J\x1b[H\x1b]0;all is well\x07\x1b[31mSTOPPED\x1b[0m\r\nsupervisor  fine \u202egnp.exe\u202c"
    "[bold red]better[/bold red] [@click=app.quit]here[/] \x9b31m\u200b\x00 日本語 e\u0301\t😀"
)
HOSTILE_NAME = "evil\x1b[8m[reverse]\u202e\nbetter"

INSTRUCTIONS = {
    "log-cause": "app.log holds the messages of one night. Write the message that started the outage into cause.txt.",
    "fix-intervals": "Mend intervals.py: merging touching intervals must give one.",
    "messy-orders": "orders.csv was typed by hand. Write the total of all paid orders into total.txt.",
    "redact-tickets": "Replace every e-mail address in tickets/ by [redacted].",
    "rename-photos": "Rename the files in photos/ as RULES.txt says.",
    "busiest-customer": "orders.log has one order a line. Write the customer with most orders into customer.txt.",
    "damaged-files": "scans/ should be as SHA256SUMS says. Write the names of those that are not into damaged.txt.",
    "start-order": "services.txt says who needs whom. Write an order in which all can start into order.txt.",
}


@dataclass(frozen=True)
class Step:
    """One action of an agent as it was answered, and what the next context shows of it ("" = nothing)."""

    answer: str
    entry: str


def instruction(task: str) -> str:
    """What the instance of a task is told."""
    return INSTRUCTIONS.get(task, f"Do what {task} asks for.")


def work(task: str, chance: random.Random, count: int) -> Iterator[Step]:
    """A plausible run of `count` steps that ends with <stop/>."""
    say = instruction(task)
    yield _step("<read_stdin/>", f"<read_stdin{{id}}>\n<![CDATA[{say}]]>\n</read_stdin>")
    for number in range(1, count - 2):
        kind = chance.choice(("ls", "read", "think", "think", "edit", "broken"))
        if kind == "ls":
            files = "\n".join(
                f"-rw-r--r-- 1 agent agent {chance.randrange(10, 90000):6} part-{n}.txt" for n in range(5)
            )
            yield script("ls -l", files)
        elif kind == "read":
            lines = "\n".join(f"03:{n:02}:{chance.randrange(60):02} worker {n % 4}: retry {n}" for n in range(12))
            yield script(f"head -n 12 part-{number % 5}.txt", lines)
        elif kind == "edit":
            yield script(f"sed -i 's/{number}/{number + 1}/' part-{number % 5}.txt && echo done", "done")
        elif kind == "broken":
            said = "<single>ls</single><stop/>"
            error = "Expected exactly one action, found 2"
            shown = (
                f"<parse_error{{id}}>\n<error>{error}</error>\n<content><![CDATA[{said}]]></content>\n</parse_error>"
            )
            yield _step(said, shown)
        else:
            thought = f"Step {number}: part-{number % 5}.txt fits best; I compare it with the one before."
            yield _step(f"<reasoning>{thought}</reasoning>", f"<reasoning{{id}}>\n<![CDATA[{thought}]]>\n</reasoning>")
    answer = f"{task}: done, see the file"
    yield _step(
        f"<write_stdout>{answer}</write_stdout>", f"<write_stdout{{id}}>\n<![CDATA[{answer}]]>\n</write_stdout>"
    )
    yield Step("<stop/>", "")


def script(text: str, stdout: str, stderr: str = "", code: int = 0) -> Step:
    """A `single` and what it printed."""
    parts = "".join(
        f"\n<{name}><![CDATA[{body}]]></{name}>" if body else f"\n<{name}/>"
        for name, body in (("stdout", stdout), ("stderr", stderr))
    )
    entry = f'<single{{id}} exit_code="{code}">\n<![CDATA[{text}]]>{parts}\n</single>'
    return Step(f"<single>{escape(text)}</single>", entry)


def _step(answer: str, entry: str) -> Step:
    return Step(answer, entry)


class Memory:
    """An agent's working memory: the entries so far, of which the newest `window` are shown."""

    def __init__(self, window: int = 1_000_000) -> None:
        self._entries: list[str] = []
        self._window, self._count = window, 0

    def take(self, step: Step) -> None:
        """What came of an action."""
        self._count += 1
        if step.entry:
            self._entries.append(step.entry.replace("{id}", f' id="{self._count:04x}"', 1))
            del self._entries[: -self._window]

    def context(self, moment: float, percent: int) -> str:
        """The context that is asked next."""
        stamp = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        head = f'<context time="{stamp}" cpu="3.0" memory_used="104857600" memory_total="536870912" context="{percent}"'
        inside = "\n".join(self._entries)
        return f'{head} stdin="0">\n{inside}\n</context>' if inside else f'{head} stdin="80"/>'
