"""The demo's story, act by act. Every act is real commands on the demo's own repository."""

from __future__ import annotations

import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import database
from orchestrator.campaign_store import find_judged
from orchestrator.demo.commands import Background, Commands
from orchestrator.errors import Failed
from orchestrator.generations import Ledger
from orchestrator.home import Home

if TYPE_CHECKING:
    from orchestrator.demo.stage import Stage
    from orchestrator.demo.voice import Voice
    from orchestrator.generations import Standing

FACTS = ("the tide turns at 14:05", "the red key opens gate 3")
GROWN = 130  # iterations of the main instance: more than `brittle` keeps logs of
REASON = "it keeps the disk free"


class Story:
    """One telling."""

    def __init__(self, stage: Stage, voice: Voice) -> None:
        self._stage, self._voice = stage, voice
        self._home = Home(stage.state, stage.repo)
        self._sia = Commands(stage.repo, voice.command)

    def tell(self) -> None:
        """All acts. Raises Failed where the story does not go as it should."""
        began = time.monotonic()
        self._prologue()
        out, log = self._stage.folder / "main.out", self._stage.folder / "supervise.log"
        with self._sia.background("supervise", out=out, log=log) as main:
            self._begin_main(main)
            self._campaign()
            self._promotion(main)
            self._brittle(main)
            self._rollback(main)
            self._sia.run("generations")
            self._sia.run("status")
        self._voice.events(main.news("log"))
        self._epilogue(time.monotonic() - began)

    def _prologue(self) -> None:
        voice = self._voice
        voice.act("A throw-away repository")
        voice.say(
            f"{self._stage.repo}\n"
            "Its branch main holds a weakened agent: of what a script prints, it keeps the first 500 characters.\n"
            "The branches better, worse, cheater and brittle each hold a real change of that agent.\n"
            "A scripted model stands in for a language model: it sees what the agent shows it, and errs like one."
        )
        self._sia.run("env", "build")

    def _begin_main(self, main: Background) -> None:
        voice = self._voice
        voice.act("The main instance starts, and is told two things")
        main.wait_for("the first iterations", lambda: self._iterations() >= 3, 60)
        for fact in FACTS:
            self._sia.run("send", f"Remember: {fact}")
            self._answer(main, fact)
        self._voice.events(main.news("log"))

    def _campaign(self) -> None:
        self._voice.act("A campaign: the baseline and three candidates, in parallel sandboxes")
        self._sia.run("campaign", "run", "examples/campaign.toml")
        self._expect("better", "better")
        self._expect("worse", "worse")
        self._expect("cheater", "disqualified")

    def _promotion(self, main: Background) -> None:
        voice = self._voice
        voice.act("The better one is promoted; the main instance restarts and keeps its state")
        self._sia.run("promote", "better", "--wait")
        voice.events(main.news("log"))
        if self._standing().generation.candidate != "better":
            raise Failed("the better candidate is not what main runs", fix="see `sia generations`")
        codes = self._exit_codes()
        if codes != [42]:
            raise Failed(f"the main instance ended with {codes}, not once with exit code 42")
        voice.say("The main instance ended with exit code 42 and was started again as the new generation.")
        self._ask(main)

    def _brittle(self, main: Background) -> None:
        self._voice.act("One more candidate, judged alone against the new generation")
        self._sia.run("campaign", "run", "examples/campaign-brittle.toml")
        verdict = self._verdict("brittle")
        if verdict not in ("inconclusive", "equivalent"):
            raise Failed(f"brittle was judged {verdict}", fix="see `sia campaign show last`")
        self._voice.say(f"The verdict is {verdict}: nothing speaks for it but a person. The demo plays that person.")
        main.wait_for("the main instance's state to grow", lambda: self._iterations() >= GROWN, 90)

    def _rollback(self, main: Background) -> None:
        voice = self._voice
        voice.act("Accepted all the same, it breaks the agent, and is rolled back without anyone's help")
        self._sia.run("promote", "brittle", "--accept", REASON, "--wait", ok=(1,))
        main.wait_for("the old generation to hold up", self._recovered, 60)
        voice.events(main.news("log"))
        if self._standing().generation.candidate != "better":
            raise Failed("main is not back at the better candidate", fix="see `sia generations`")
        _, asked, *boots = self._exit_codes()
        voice.say(f"After exit code {asked}, {len(boots)} boots ended with {', '.join(map(str, boots))}.")
        self._ask(main)

    def _epilogue(self, seconds: float) -> None:
        baseline, better = (self._trial(arm, "log-cause") for arm in ("baseline", "better"))
        self._voice.act(f"Done in {seconds:.0f} seconds; nothing runs any more")
        commands = {
            "sia campaign show c0001 --trials": "verdicts and every trial",
            "sia campaign report c0001": "the same with figures",
            f"sia log show {better}": "what a trial's agent saw and answered",
            f"sia log diff {baseline} {better}": "where two trials of one task went apart",
            "git diff main better": "the change that was promoted",
            "sia generations": "what ran, and why it no longer does",
        }
        self._voice.say(
            f"Look around (the folder is removed by the next demo, or by you; sia is {_program()}):\n"
            f"  cd {self._stage.repo}\n" + "\n".join(f"  {line:<34} {text}" for line, text in commands.items())
        )

    # -- looking ------------------------------------------------------------------------------------------------------

    def _ask(self, main: Background) -> None:
        self._sia.run("send", "What did I ask you to remember?")
        self._answer(main, *FACTS)

    def _answer(self, main: Background, *expected: str) -> None:
        """Show the main instance's next answer, in which all that is expected must be."""
        lines: list[str] = []

        def heard() -> bool:
            lines.extend(main.news("out"))
            return bool(lines)

        main.wait_for("an answer", heard, 30)
        for line in lines:
            self._voice.quote("main", line)
        missing = [words for words in expected if words not in " ".join(lines)]
        if missing:
            raise Failed(f"the main instance has forgotten: {'; '.join(missing)}", where=str(self._stage.repo))

    def _standing(self) -> Standing:
        with closing(database.connect(self._home.database, read_only=True)) as connection:
            return Ledger(connection).standing()

    def _recovered(self) -> bool:
        standing = self._standing()
        return standing.state == "STABLE" and not standing.probation

    def _iterations(self) -> int:
        """Valid iterations of the main instance, over all its starts."""
        return sum(row["valid"] for row in self._launches())

    def _exit_codes(self) -> list[int | None]:
        """How the main instance's starts ended, in order."""
        return [row["exit_code"] for row in self._launches() if row["finished"] is not None]

    def _launches(self) -> list[sqlite3.Row]:
        if not self._home.database.exists():
            return []
        with closing(database.connect(self._home.database, read_only=True)) as connection:
            try:
                return connection.execute("SELECT valid, exit_code, finished FROM launch ORDER BY started").fetchall()
            except sqlite3.OperationalError:  # the tables are just being made
                return []

    def _trial(self, arm: str, task: str) -> str:
        """The first trial of an arm on a task in the first campaign."""
        where = "campaign = 'c0001' AND arm = ? AND task = ? AND repeat = 1"
        with closing(database.connect(self._home.database, read_only=True)) as connection:
            return str(connection.execute(f"SELECT id FROM trial WHERE {where}", (arm, task)).fetchone()["id"])

    def _verdict(self, candidate: str) -> str:
        with closing(database.connect(self._home.database, read_only=True)) as connection:
            return find_judged(connection, candidate).verdict

    def _expect(self, candidate: str, verdict: str) -> None:
        if (found := self._verdict(candidate)) != verdict:
            fix = "see `sia campaign show last` in that repository"
            raise Failed(f"{candidate} was judged {found}, not {verdict}", where=str(self._stage.repo), fix=fix)


def _program() -> str:
    """How a person starts `sia` in the demo's repository."""
    beside = Path(sys.executable).with_name("sia")
    return str(beside) if beside.exists() else f"{sys.executable} -P -m orchestrator"
