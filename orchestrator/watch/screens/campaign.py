"""A campaign: progress, matrix, verdicts so far, trials."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult

from orchestrator.campaign_view import BASELINE, TrialRow
from orchestrator.watch.bars import Bar
from orchestrator.watch.campaign_feed import CampaignFeed, CampaignNow
from orchestrator.watch.lines import Lines
from orchestrator.watch.panels_campaign import TRIALS, head, matrix, verdicts
from orchestrator.watch.panes import Body, Pane, Stack
from orchestrator.watch.sources import Rendered, Texts, draw
from orchestrator.watch.tables import Table
from orchestrator.watch.values import Instance, Snapshot
from orchestrator.watch.view import Target, View

EMPTY = "There is no campaign yet.\n\nsia campaign run campaign.toml    judge candidates\nsia demo    see one"
EVERY = 1.0
VERDICTS, MATRIX, TRIAL_LIST = range(3)


def words(trial: TrialRow) -> str:
    """What the filter looks at."""
    parts = (trial.id, trial.arm, trial.task, trial.state, trial.outcome, trial.detail, trial.disqualified)
    return " ".join(part for part in parts if part)


class CampaignView(View):
    """The verdicts, the matrix, the trials: one at a time, on wide terminals side by side."""

    TITLE = "campaign"
    ACTIONS = ("open", "stop", "promote", "rerun", "kill", "mark", "disk", "next_pane", "sort")

    def __init__(self) -> None:
        """Made whole at once: news may come before it is composed."""
        super().__init__()
        self.ident = ""
        self.now: CampaignNow | None = None
        self._feed: CampaignFeed | None = None
        self._told = False  # whether a verdict, or that there is none, is shown
        self.trials: Table[TrialRow] = Table(TRIALS, key=lambda row: row.id, words=words)
        self.panes = [
            Lines("campaign-verdicts", cursor=False, empty="looking…"),
            Lines("campaign-matrix", cursor=False),
            Lines("campaign-trials", empty="looking…"),
        ]

    def compose(self) -> ComposeResult:
        """Three panes under a head."""
        boxes = [Pane(pane, title) for pane, title in zip(self.panes, ("verdicts", "matrix", "trials"), strict=True)]
        yield Bar("campaign-head", lines=0)
        yield Body([Stack((boxes[0], boxes[1]), split=True), Stack((boxes[2],))])

    # -- reading

    def enter(self, ident: str) -> None:
        """A campaign's id; empty: the one that was shown before, else the newest."""
        if ident and ident != self.ident:
            self._change(ident)
        self.watch_app.campaigns.every("campaign", EVERY, self._poll)

    def leave(self) -> None:
        """No more."""
        self.watch_app.campaigns.drop("campaign")

    def _change(self, ident: str) -> None:
        self.ident, self.now, self._told = ident, None, False
        self.trials.fill(())
        self.panes[VERDICTS].set_empty("looking…")
        for pane in self.panes:
            pane.show(Texts([]), keep=False)
        self.put("campaign-head")
        self.watch_app.campaigns.hurry("campaign")

    def _poll(self) -> tuple[CampaignNow, bool] | None:
        """In the reading thread: the campaign, and whether the verdict so far is in it."""
        wanted = self.ident
        if not wanted:
            return None
        if self._feed is None or not self._feed.id.startswith(wanted):
            if self._feed is not None:
                self._feed.close()
            self._feed = CampaignFeed(self.watch_app.home, wanted)
            self.watch_app.campaigns.hurry("campaign")
            return self._feed.poll(judge=False), False  # what is there at once; the numbers follow
        return self._feed.poll(), True

    def snapshot(self, snapshot: Snapshot) -> None:
        """Without a choice of its own: a running campaign, else the newest."""
        if not self.ident and snapshot.campaigns:
            running = [line for line in snapshot.campaigns if line.running]
            self._change((running or list(snapshot.campaigns))[0].id)
        elif not snapshot.campaigns and not self.ident:
            self.panes[VERDICTS].set_empty(snapshot.problem or EMPTY)

    def loaded(self, name: str, value: Any, error: BaseException | None) -> None:
        """News of the campaign."""
        if name != "campaign":
            return
        if error is not None:
            self.panes[VERDICTS].set_empty(self.watch_app.words_of(error))
            return
        if value is None or not value[0].view.id.startswith(self.ident):
            return
        now, judged = value
        before, self.now = self.now, now
        self.ident = now.view.id
        self.heads()
        if not judged and not now.view.verdicts:
            self.panes[VERDICTS].set_empty("the verdict so far is being computed…")
        elif before is None or before.serial != now.serial or before.so_far is not now.so_far or not self._told:
            self._told = True
            self.panes[VERDICTS].show(Rendered(lambda width: verdicts(now, width)))
            self._share()
        if before is None or before.serial != now.serial:
            self.panes[MATRIX].show(Rendered(lambda width: matrix(now, width)))
            self.panes[TRIAL_LIST].set_empty("no trial is planned yet")
            self.panes[TRIAL_LIST].show(self.trials.fill(now.view.trials))

    def _share(self) -> None:
        """On wide terminals the verdicts take the rows that they need, the matrix the rest."""
        pane = self.panes[VERDICTS].parent
        needed = len(self.panes[VERDICTS].source) + 2
        if isinstance(pane, Pane):
            fits = self.wide and 2 < needed < self.app.size.height // 2
            pane.styles.height = needed if fits else "1fr"

    def pane_changed(self) -> None:
        """Another share of the room."""
        super().pane_changed()
        self._share()

    def heads(self) -> None:
        """Progress."""
        if self.now is not None:
            self.put("campaign-head", *draw(head(self.now, self.room), self.room))

    # -- keys

    def selected(self) -> TrialRow | None:
        """The trial under the cursor."""
        return self.trials.at(self.panes[TRIAL_LIST].cursor)

    def _instance(self, trial: TrialRow) -> Instance | None:
        snapshot = self.watch_app.snapshot
        return snapshot.instance(trial.id) if snapshot is not None else None

    def target(self) -> Target:
        """The trial, its candidate, the campaign. With the cursor on a baseline's trial: the best candidate."""
        trial = self.selected()
        if self.now is None:
            return Target()
        view = self.now.view
        if trial is None:
            return Target(view.id, campaign=view.id, candidate=self._best())
        candidate = trial.arm if trial.arm != BASELINE and self.pane_index == TRIAL_LIST else self._best()
        verdict = view.verdicts.get(candidate or "", {}).get("verdict")
        return Target(trial.id, self._instance(trial), trial.id, view.id, candidate, verdict)

    def _best(self) -> str | None:
        assert self.now is not None
        better = {
            arm: verdict.get("difference") or 0.0
            for arm, verdict in self.now.view.verdicts.items()
            if verdict.get("verdict") == "better"
        }
        names = [arm.name for arm in self.now.view.candidates]
        return max(better, key=lambda arm: better[arm]) if better else (names[0] if len(names) == 1 else None)

    def live(self) -> list[str]:
        """Only what fits the state of the campaign and of the trial."""
        if self.now is None:
            return []
        state, trial = self.now.view.state, self.selected()
        names = list(self.ACTIONS)
        if state not in ("running",):
            names.remove("stop")
        if state != "done" or self.target().candidate is None:
            names.remove("promote")
        if trial is None or self._instance(trial) is None:
            names.remove("kill")
        if trial is None or trial.state != "done":
            names.remove("rerun")
        campaigns = self.watch_app.snapshot.campaigns if self.watch_app.snapshot else ()
        return [*names, "next_campaign"] if len(campaigns) > 1 else names

    def act(self, action: str) -> bool:
        """enter opens the trial."""
        if action == "open":
            trial = self.selected()
            if self.pane_index != TRIAL_LIST:
                self.focus_pane(TRIAL_LIST)
            elif trial is not None:
                self.watch_app.go("detail", trial.id)
        elif self.order(action, self.trials, self.panes[TRIAL_LIST], "in the order of the plan"):
            return True
        elif action in ("next_campaign", "previous_campaign"):
            self._next(1 if action == "next_campaign" else -1)
        else:
            return super().act(action)
        return True

    def _next(self, by: int) -> None:
        snapshot = self.watch_app.snapshot
        ids = [line.id for line in snapshot.campaigns] if snapshot else []
        if ids:
            place = ids.index(self.ident) if self.ident in ids else 0
            self._change(ids[(place + by) % len(ids)])

    def set_filter(self, text: str, *, done: bool) -> None:
        """Fewer trials."""
        super().set_filter(text, done=done)
        pane = self.panes[TRIAL_LIST]
        self.trials.set_filter(text)
        pane.set_empty(f"no trial has «{text}» (esc drops the filter)" if text else "no trial is planned yet")
        pane.show(self.trials)
        self.titled(TRIAL_LIST, f"/{text}: {len(self.trials)} of {self.trials.total}" if text else "")

    def state(self) -> str:
        """Which campaign of how many."""
        snapshot = self.watch_app.snapshot
        ids = [line.id for line in snapshot.campaigns] if snapshot else []
        return f"{ids.index(self.ident) + 1} of {len(ids)}" if self.ident in ids else ""
