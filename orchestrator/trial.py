"""One trial: from empty overlay to reward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from orchestrator.agent_build import AgentBuild
    from orchestrator.broker import Usage
    from orchestrator.config import CampaignLimits
    from orchestrator.engines.host import EngineHost
    from orchestrator.exchanges import ExchangeStore
    from orchestrator.home import Home
    from orchestrator.supervisor_socket import SupervisorServer
    from orchestrator.task_files import TaskFiles
    from sandbox.host import Host

OutcomeName = Literal["completed", "limit", "crashed", "invalid"]


class Stopped(Exception):
    """`TrialSpec.stop` was set: the trial was killed and cleaned up, has no result, and can be run again."""


@dataclass(frozen=True)
class TrialContext:
    """What all trials of a campaign share. Nothing here belongs to one trial; used from several threads at once."""

    host: Host
    home: Home
    engine: EngineHost
    store: ExchangeStore
    verifier_env: Path  # orchestrator.environments.verifier_environment(home)
    supervisor: SupervisorServer  # answers /run/sia/supervisor.sock


@dataclass(frozen=True)
class TrialSpec:
    """One trial to run. `id` names its journal; `directory` (made if missing) keeps what is kept of it."""

    id: str
    campaign: str
    arm: str
    build: AgentBuild
    task: TaskFiles  # orchestrator.task_files.prepare(task, host, directory), once per campaign
    repeat: int
    seed: int  # of the campaign file; sampling seeds are derived from it (CONTRACT.md)
    limits: CampaignLimits
    directory: Path
    keep_workdir: bool = False
    stop: threading.Event | None = None  # set by the campaign at Ctrl-C: kill everything at once, raise Stopped
    progress: Callable[[Usage], None] | None = None  # after each exchange (from the broker's thread; must not block)


@dataclass(frozen=True)
class TrialRecord:
    """What a trial gave. JSON-able (`to_json`). Amounts that nobody knows are None, never 0."""

    id: str
    campaign: str
    arm: str
    task: str
    repeat: int
    outcome: OutcomeName
    detail: str  # limit's name, how it crashed, or why it is invalid; "" when completed
    reward: float | None  # None only when invalid
    disqualified: str | None  # evidence of tampering, in words
    tokens: int | None  # prompt + completion
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    iterations: int
    cost: float | None
    seconds: float  # of the instance, GO to end
    engine_seconds: float
    verifier_seconds: float
    exit_code: int | None
    parse_errors: int
    repeated_actions: int
    deletes: int
    context_growth: float
    peak_memory_mb: float | None
    memory_enforcer: str
    forgeable: bool
    changes: int  # files and directories that the instance added, changed or removed
    tree: str  # tree hash of the agent paths that ran
    task_key: str  # content hash of the task that ran
    journal_head: str
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return asdict(self) | {"notes": list(self.notes)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrialRecord:
        """The inverse of `to_json`. Unknown keys are ignored, so that newer records can be read."""
        known = {key: value for key, value in values.items() if key in cls.__dataclass_fields__}
        return cls(**known | {"notes": tuple(values.get("notes", ()))})


def run_trial(context: TrialContext, spec: TrialSpec) -> TrialRecord:
    """Run one trial to its end, however it ends, and clean up. Never raises for what an instance did.

    Raises SiaError only when nothing could be started for a reason of ours that a retry will not mend.
    """
    raise NotImplementedError
