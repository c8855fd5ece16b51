"""The ledger of generations: what main is, what it was, and the one promotion that may be open.

SQLite is the sole authority. Every method is one transaction and checks its move against `states.TRANSITIONS`; an
illegal move raises and changes nothing. Nothing here touches git, files or processes, so any sequence of kills leaves a
state that `recovery.recover` can read and go on from.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from orchestrator import states
from orchestrator.database import transaction
from orchestrator.errors import Failed
from orchestrator.ledger_values import Data as Data
from orchestrator.ledger_values import Generation as Generation
from orchestrator.ledger_values import Promotion as Promotion
from orchestrator.ledger_values import Standing as Standing
from orchestrator.ledger_values import promotion_of

TRIES = 3  # launches of a new generation before it is rolled back


class Ledger:
    """The ledger over one database connection (`database.connect`)."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    # -- looking ------------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether a first generation was recorded."""
        return self._db.execute("SELECT 1 FROM ledger").fetchone() is not None

    def standing(self) -> Standing:
        """What is so now. Raises Failed before the first generation."""
        row = self._db.execute("SELECT * FROM ledger").fetchone()
        if row is None:
            raise Failed("there is no generation yet", where="ledger", fix="run a campaign, or start `sia supervise`")
        promotion = None if row["promotion"] is None else self.promotion(row["promotion"])
        return Standing(
            row["state"],
            self.generation(row["generation"]),
            self.generation(row["last_good"]),
            promotion,
            bool(row["probation"]),
            row["crashes"],
            row["cause"],
        )

    def generation(self, number: int) -> Generation:
        """One generation. Raises Failed for a number that does not exist."""
        row = self._db.execute("SELECT * FROM generation WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise Failed(f"there is no generation {number}", where="ledger", fix="see `sia generations`")
        return Generation(*row)

    def generations(self) -> list[Generation]:
        """All, oldest first."""
        return [Generation(*row) for row in self._db.execute("SELECT * FROM generation ORDER BY number")]

    def promotion(self, number: int) -> Promotion:
        """One promotion. Raises Failed for a number that does not exist."""
        row = self._db.execute("SELECT * FROM promotion WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise Failed(f"there is no promotion {number}", where="ledger", fix="see `sia generations`")
        return promotion_of(row)

    def promotions(self) -> list[Promotion]:
        """All, oldest first."""
        return [promotion_of(row) for row in self._db.execute("SELECT * FROM promotion ORDER BY id")]

    def data(self) -> Data:
        """Where durable data lie."""
        row = self._db.execute("SELECT stack, upper, stdin_offset FROM main_data").fetchone()
        return Data(tuple(json.loads(row["stack"])), row["upper"], row["stdin_offset"])

    def check_closed(self) -> Standing:
        """What is so now, if no promotion is open. Raises Failed if one is."""
        standing = self.standing()
        if standing.promotion:
            raise Failed(
                f"promotion {standing.promotion.id} ({standing.promotion.candidate}) is open: {standing.state}",
                where="ledger",
                fix="wait until it is decided (`sia status`), or end it with `sia rollback`",
            )
        return standing

    def bad(self, tree: str) -> str | None:
        """Why a tree is BAD, or None."""
        row = self._db.execute("SELECT generation, cause FROM bad_tree WHERE tree = ?", (tree,)).fetchone()
        return None if row is None else f"generation {row['generation']}: {row['cause']}"

    # -- beginning ----------------------------------------------------------------------------------------------------

    def found(self, commit: str, tree: str) -> Generation:
        """Record generation 1, once; later calls change nothing. Returns the current generation."""
        with transaction(self._db):
            if not self.exists():
                insert = "INSERT INTO generation VALUES (1, ?, ?, NULL, 'first', NULL, NULL, ?, 'good', NULL)"
                self._db.execute(insert, (commit, tree, time.time()))
                self._db.execute("INSERT INTO ledger (id, state, generation, last_good) VALUES (1, 'STABLE', 1, 1)")
                self._db.execute("INSERT INTO main_data (id) VALUES (1)")
                self._event("generation", "1", f"generation 1 is {commit[:12]}")
        return self.standing().generation

    # -- a promotion, step by step ------------------------------------------------------------------------------------

    def stage(
        self, candidate: str, commit: str, tree: str, *, campaign: str | None, accepted: str | None = None, old: str
    ) -> Promotion:
        """STABLE → STAGED: the export exists, its hash was verified, conformance passed. `old` = the commit judged
        against. Raises Failed when another promotion is open or main is not `old` any more."""
        with transaction(self._db):
            standing = self.check_closed()
            if standing.generation.commit != old:
                raise Failed(
                    f"main is now {standing.generation.commit[:12]}, the candidate was judged against {old[:12]}",
                    where=candidate,
                    fix="merge and judge again: run a campaign against the current generation",
                )
            number = self._insert(
                "promotion", candidate, commit, tree, standing.generation, campaign=campaign, accepted=accepted
            )
            self._move("stage", promotion=number)
            self._event("promotion", candidate, f"promotion {number}: staged {commit[:12]}")
        return self.promotion(number)

    def approve(self, by: str) -> Promotion:
        """STAGED → INTENT; `by` is 'policy' or 'person'."""
        with transaction(self._db):
            promotion = self._open("approve")
            self._db.execute("UPDATE promotion SET approved = ? WHERE id = ?", (by, promotion.id))
            self._move("approve")
            self._event("promotion", promotion.candidate, f"promotion {promotion.id}: approved by {by}")
        return self.promotion(promotion.id)

    def withdraw(self, cause: str) -> None:
        """STAGED → STABLE: not approved after all."""
        with transaction(self._db):
            self._close(self._open("withdraw"), "withdraw", "withdrawn", cause)

    def request(self, number: int, *, with_state: bool) -> Promotion:
        """STABLE or SAFE → INTENT: a person goes to an earlier good generation."""
        with transaction(self._db):
            standing, target = self.check_closed(), self.generation(number)
            if target.number == standing.generation.number:
                raise Failed(
                    f"generation {number} is what main is already", where="rollback", fix="name an earlier one"
                )
            if target.state != "good":
                fix = "name a good generation, or promote its branch with --accept REASON"
                raise Failed(f"generation {number} is {target.state} ({target.cause})", where="rollback", fix=fix)
            name = f"generation {number}"
            promotion = self._insert(
                "rollback", name, target.commit, target.tree, standing.generation, new=number, with_state=with_state
            )
            self._db.execute("UPDATE promotion SET approved = 'person' WHERE id = ?", (promotion,))
            self._move("request", promotion=promotion)
            self._event("rollback", name, f"promotion {promotion}: a person asked to go back to generation {number}")
        return self.promotion(promotion)

    def freeze(self, offset: int) -> Promotion:
        """INTENT: main has stopped; its level becomes a frozen layer, `offset` is F. Repeating it changes nothing."""
        with transaction(self._db):
            promotion = self._open("freeze")
            if promotion.frozen is None:
                data = self.data()
                frozen = (*data.stack, data.upper)
                base = self._base(promotion, frozen)
                update = "UPDATE promotion SET frozen = ?, base = ?, stdin_offset = ? WHERE id = ?"
                self._db.execute(update, (json.dumps(frozen), json.dumps(base), offset, promotion.id))
                self._fresh(frozen, offset)
        return self.promotion(promotion.id)

    def moved(self) -> Promotion:
        """INTENT → TRIAL: the ref names the new commit; it gets its generation number."""
        with transaction(self._db):
            promotion = self._open("moved")
            if promotion.frozen is None:
                raise states.IllegalMove("moved before the data were frozen")
            number = promotion.new or self._number(promotion)
            self._db.execute("UPDATE promotion SET new = ? WHERE id = ?", (number, promotion.id))
            self._move("moved", generation=number)
            self._event("generation", str(number), f"generation {number} ({promotion.candidate}) boots")
        return self.promotion(promotion.id)

    def give_up(self, cause: str) -> None:
        """INTENT → STABLE: main did not stop in time and goes on unchanged. Not after the data were frozen."""
        with transaction(self._db):
            promotion = self._open("give_up")
            if promotion.frozen is not None:
                raise states.IllegalMove("given up after the data were frozen")
            self._close(promotion, "give_up", "given_up", cause)

    def foreign_ref(self, cause: str) -> None:
        """INTENT → HOLD: the ref names neither old nor new."""
        with transaction(self._db):
            if self._open("foreign_ref").frozen is None:
                raise states.IllegalMove("the ref was looked at before the data were frozen")
            self._move("foreign_ref", cause=f"ref: {cause}")
            self._event("hold", "ref", cause)

    def ref_back(self) -> None:
        """HOLD → INTENT: the ref is one of the two again."""
        with transaction(self._db):
            self._open("ref_back")
            self._move("ref_back")

    # -- boots --------------------------------------------------------------------------------------------------------

    def count_launch(self) -> Promotion:
        """TRIAL(k) → TRIAL(k−1), committed before exec. Each boot gets a fresh level over the frozen ones and messages
        from F. Raises IllegalMove without tries."""
        with transaction(self._db):
            promotion = self._open("launch")
            if promotion.tries == 0 or promotion.base is None or promotion.stdin_offset is None:
                raise states.IllegalMove("a launch without tries or frozen data")
            update = "UPDATE promotion SET tries = tries - 1, launches = launches + 1 WHERE id = ?"
            self._db.execute(update, (promotion.id,))
            self._fresh(promotion.base, promotion.stdin_offset)
        return self.promotion(promotion.id)

    def healthy(self, nonce: str) -> None:
        """TRIAL → STABLE(new), in one transaction with last_good = new. `nonce` is the launch it is proved by."""
        with transaction(self._db):
            promotion = self._open("healthy")
            number = self._proved(promotion, nonce)
            self._db.execute("UPDATE generation SET state = 'good', cause = NULL WHERE number = ?", (number,))
            if promotion.kind == "rollback":
                self._mark_left(promotion)
            self._db.execute("DELETE FROM bad_tree WHERE tree = ?", (promotion.tree,))
            self._close(promotion, "healthy", "healthy", None)
            self._db.execute("UPDATE ledger SET last_good = ?, crashes = 0, probation = 0", (number,))

    def failed(self, cause: str) -> str:
        """TRIAL(k): the try is lost → TRIAL, or ROLLBACK at k = 0. Returns the new state."""
        with transaction(self._db):
            promotion = self._open("failed")
            self._event("boot", promotion.candidate, f"boot {promotion.launches} of {promotion.candidate}: {cause}")
            self._db.execute("UPDATE promotion SET cause = ? WHERE id = ?", (cause, promotion.id))
            if promotion.tries > 0:
                return self._move("failed")
            return self._doom(promotion, "exhausted", cause)

    def give_back(self, cause: str) -> bool:
        """TRIAL: a try that proves nothing (outage, orderly stop) is given back, once. Returns whether it was."""
        with transaction(self._db):
            return self._give_back(self._open("give_back"), cause)

    def outage(self, cause: str) -> str:
        """TRIAL → HOLD: the engine is out; the try is given back once. No tries left → ROLLBACK. Returns it."""
        with transaction(self._db):
            promotion = self._open("outage")
            self._event("hold", "engine", cause)
            if not self._give_back(promotion, cause) and promotion.tries == 0:
                return self._doom(promotion, "exhausted", cause)
            return self._move("outage", cause=cause)

    def engine_back(self) -> None:
        """HOLD → TRIAL."""
        with transaction(self._db):
            self._open("engine_back")
            self._move("engine_back")

    def abandon(self, cause: str) -> None:
        """INTENT (data frozen), TRIAL or HOLD → ROLLBACK: a person ends it. Its tree is not marked BAD: it may be
        promoted again."""
        with transaction(self._db):
            promotion = self._open("abandon")
            if promotion.frozen is None:
                raise states.IllegalMove("abandoned before the data were frozen")
            if promotion.kind == "promotion" and promotion.new is not None:
                self._set_bad(promotion.new, cause)
            self._db.execute("UPDATE promotion SET cause = ? WHERE id = ?", (cause, promotion.id))
            self._move("abandon", cause=cause)

    def returned(self) -> None:
        """ROLLBACK → STABLE(old) on probation: the ref is back; data go back to the frozen layers, messages to F."""
        with transaction(self._db):
            promotion = self._open("returned")
            if promotion.frozen is not None and promotion.stdin_offset is not None:
                self._fresh(promotion.frozen, promotion.stdin_offset)
            self._db.execute("UPDATE ledger SET generation = ?, probation = 1", (promotion.old,))
            self._close(promotion, "returned", "rolled_back", promotion.cause)

    # -- main by itself -----------------------------------------------------------------------------------------------

    def crash(self, cause: str) -> int:
        """Main died, not in a boot of a new generation. Returns how many times in a row."""
        with transaction(self._db):
            self._move("crash")
            self._db.execute("UPDATE ledger SET crashes = crashes + 1")
            self._event("crash", "main", cause)
        return self.standing().crashes

    def held_up(self) -> None:
        """The old generation is healthy after a rollback: probation ends."""
        self._db.execute("UPDATE ledger SET probation = 0 WHERE probation = 1")

    def steady(self) -> None:
        """Main has been healthy for long enough that earlier crashes are forgotten."""
        self._db.execute("UPDATE ledger SET crashes = 0 WHERE crashes > 0")

    def died(self, cause: str) -> None:
        """STABLE on probation → SAFE: the old one died too. No agent runs until a person decides."""
        with transaction(self._db):
            self._move("died", cause=cause)
            self._event("safe", "main", cause)

    def retry(self) -> None:
        """SAFE → STABLE: a person wants the same generation tried again."""
        with transaction(self._db):
            self._move("retry")
            self._db.execute("UPDATE ledger SET crashes = 0, probation = 1")
            self._event("safe", "main", "a person asked for another try")

    def begin_launch(self, nonce: str, stdin_count: int | None) -> None:
        """Record a start of main, before exec. `stdin_count`: see `saved_input`."""
        standing, data = self.standing(), self.data()
        trial = standing.promotion.id if standing.promotion and standing.state == states.TRIAL else None
        self._db.execute(
            "INSERT INTO launch (nonce, generation, promotion, level, stdin_start, stdin_count, started)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (nonce, standing.generation.number, trial, data.upper, data.stdin_offset, stdin_count, time.time()),
        )

    def count_valid(self, nonce: str, valid: int, offset: int) -> None:
        """Valid iterations of a launch so far, and the message bytes that its saved state is known to hold."""
        with transaction(self._db):
            self._db.execute("UPDATE launch SET valid = ? WHERE nonce = ?", (valid, nonce))
            self._db.execute("UPDATE main_data SET stdin_offset = ? WHERE stdin_offset < ?", (offset, offset))

    def end_launch(self, nonce: str, exit_code: int | None, cause: str) -> None:
        """Record how a start of main ended."""
        update = "UPDATE launch SET finished = ?, exit_code = ?, cause = ? WHERE nonce = ?"
        self._db.execute(update, (time.time(), exit_code, cause, nonce))

    def set_offset(self, offset: int) -> None:
        """Offset of the first message byte that the saved state does not hold, known exactly at an orderly exit."""
        self._db.execute("UPDATE main_data SET stdin_offset = ?", (offset,))

    def event(self, kind: str, subject: str, text: str) -> None:
        """Add to the event log that `sia status` shows."""
        self._event(kind, subject, text)

    # -- inside a transaction -----------------------------------------------------------------------------------------

    def _move(self, event: str, **columns: Any) -> str:
        state = self._db.execute("SELECT state FROM ledger").fetchone()[0]
        columns = {"cause": None, **columns, "state": states.after(state, event)}
        names = ", ".join(f"{name} = ?" for name in columns)
        self._db.execute(f"UPDATE ledger SET {names}", tuple(columns.values()))
        return str(columns["state"])

    def _open(self, event: str) -> Promotion:
        standing = self.standing()
        states.after(standing.state, event)
        if standing.promotion is None:
            raise states.IllegalMove(f"{event} without an open promotion")
        return standing.promotion

    def _insert(
        self,
        kind: str,
        candidate: str,
        commit: str,
        tree: str,
        old: Generation,
        *,
        campaign: str | None = None,
        accepted: str | None = None,
        new: int | None = None,
        with_state: bool = False,
    ) -> int:
        row = self._db.execute(
            "INSERT INTO promotion (kind, candidate, campaign, accepted, old, new, old_commit, new_commit, tree,"
            " with_state, nonce, tries, created) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?) RETURNING id",
            (
                *(kind, candidate, campaign, accepted, old.number, new, old.commit, commit, tree, with_state),
                *(secrets.token_hex(8), TRIES, time.time()),
            ),
        ).fetchone()
        return int(row[0])

    def _number(self, promotion: Promotion) -> int:
        number = self._db.execute("SELECT max(number) + 1 FROM generation").fetchone()[0]
        self._db.execute(
            "INSERT INTO generation VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'trial', NULL)",
            (
                *(number, promotion.new_commit, promotion.tree, promotion.old, promotion.candidate),
                *(promotion.campaign, promotion.accepted, time.time()),
            ),
        )
        return int(number)

    def _base(self, promotion: Promotion, frozen: Sequence[int]) -> Sequence[int]:
        if not promotion.with_state:
            return frozen
        row = self._db.execute(
            "SELECT frozen FROM promotion WHERE old = ? AND outcome = 'healthy' ORDER BY id DESC LIMIT 1",
            (promotion.new,),
        ).fetchone()
        return frozen if row is None else list(json.loads(row[0]))

    def _fresh(self, stack: Sequence[int], offset: int) -> None:
        update = "UPDATE main_data SET stack = ?, upper = next, next = next + 1, stdin_offset = ?"
        self._db.execute(update, (json.dumps(list(stack)), offset))

    def _proved(self, promotion: Promotion, nonce: str) -> int:
        row = self._db.execute("SELECT promotion FROM launch WHERE nonce = ?", (nonce,)).fetchone()
        if row is None or row["promotion"] != promotion.id or promotion.new is None:
            raise states.IllegalMove(f"healthy by launch {nonce}, which is none of promotion {promotion.id}")
        return promotion.new

    def _give_back(self, promotion: Promotion, cause: str) -> bool:
        if promotion.given_back:
            return False
        self._db.execute("UPDATE promotion SET tries = tries + 1, given_back = 1 WHERE id = ?", (promotion.id,))
        self._event("boot", promotion.candidate, f"boot of {promotion.candidate} is given back: {cause}")
        return True

    def _doom(self, promotion: Promotion, event: str, cause: str) -> str:
        if promotion.kind == "promotion" and promotion.new is not None:
            self._mark_bad(promotion.new, cause)
        self._db.execute("UPDATE promotion SET cause = ? WHERE id = ?", (cause, promotion.id))
        self._event("rollback", promotion.candidate, f"{promotion.candidate} did not hold up: {cause}")
        return self._move(event, cause=cause)

    def _set_bad(self, number: int, cause: str) -> None:
        self._db.execute("UPDATE generation SET state = 'bad', cause = ? WHERE number = ?", (cause, number))

    def _mark_bad(self, number: int, cause: str) -> None:
        self._set_bad(number, cause)
        self._db.execute(
            "INSERT INTO bad_tree SELECT tree, number, ?, ? FROM generation WHERE number = ?"
            " ON CONFLICT (tree) DO UPDATE SET cause = excluded.cause, time = excluded.time",
            (time.time(), cause, number),
        )

    def _mark_left(self, promotion: Promotion) -> None:
        """The generations that a person went back from: from the old one down to the new one, along the parents."""
        number: int | None = promotion.old
        while number is not None and number != promotion.new:
            generation = self.generation(number)
            self._mark_bad(number, "a person rolled it back")
            number = generation.parent

    def _close(self, promotion: Promotion, event: str, outcome: str, cause: str | None) -> None:
        self._db.execute(
            "UPDATE promotion SET outcome = ?, cause = coalesce(?, cause), finished = ? WHERE id = ?",
            (outcome, cause, time.time(), promotion.id),
        )
        self._move(event, promotion=None)
        text = f"promotion {promotion.id} ({promotion.candidate}): {outcome.replace('_', ' ')}"
        self._event("promotion", promotion.candidate, f"{text}: {cause}" if cause else text)

    def _event(self, kind: str, subject: str, text: str) -> None:
        insert = "INSERT INTO event (time, kind, subject, text) VALUES (?, ?, ?, ?)"
        self._db.execute(insert, (time.time(), kind, subject, text))
