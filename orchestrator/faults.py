"""Named points of a promotion at which a test can kill the process: `SIA_FAULT=<step>` → SIGKILL of itself there."""

from __future__ import annotations

import os
import signal

STEPS = (
    # in the order of the ledger's table; each stands directly AFTER the durable step it is named for
    "exported",
    "staged",
    "intent",
    "asked",
    "stopped",
    "frozen",
    "ref_moved",
    "trial",
    "launch_counted",
    "launched",
    "healthy",
    # only on the way back
    "failed",
    "rollback",
    "ref_back",
    "returned",
    "old_launched",
)


def point(step: str) -> None:
    """Die here if `SIA_FAULT` names this step. No handler runs and nothing is flushed, as in a power cut."""
    if os.environ.get("SIA_FAULT") == step:
        os.kill(os.getpid(), signal.SIGKILL)
