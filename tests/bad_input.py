"""The numbered cases of bad input, and the summary that `pytest -m bad_input` ends with: each case and its message.

A case is proved by one or more tests marked `bad_input`; what such a test prints is the message that a user gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

INPUT, CANDIDATES = "test_campaign_input.py::test_bad_input_", "test_candidates.py::test_bad_input_"
TASKS, TRIAL = "test_tasks.py::test_bad_input_", "test_trial.py::test_bad_input_"
VERIFIER, BROKER = "test_verifier.py::test_bad_input_", "test_broker.py::test_bad_input_"

CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("campaign.toml is missing", (INPUT + "campaign_file_is_missing",)),
    ("campaign.toml: unknown key, wrong type, negative number", (INPUT + "campaign_file[",)),
    ("sia.toml: unknown key, wrong type, negative number", ("test_config.py::test_bad_input_sia_toml",)),
    ("task.toml is missing", (TASKS + "task_toml_missing",)),
    ("task.toml: not TOML, wrong type, negative number", (TASKS + "task_toml[",)),
    ("task.toml: unknown keys are a note", (TASKS + "unknown_keys",)),
    ("candidate branch that does not exist", ("test_repository.py::test_bad_input_candidate_does_not_exist",)),
    ("candidate that shares no history", ("candidate_shares_no_history",)),
    ("candidate that conflicts with the current generation", (CANDIDATES + "conflict",)),
    ("candidate that adds a symlink out of the tree", (CANDIDATES + "symlink_out",)),
    ("candidate that adds a submodule", (CANDIDATES + "submodule",)),
    ("candidate that changes its requirements", (CANDIDATES + "changed_requirements",)),
    ("candidate that changes nothing in the agent paths", (CANDIDATES + "changes_nothing",)),
    ("task without tests/test.sh", (TASKS + "no_test_script",)),
    ("reward file missing", (VERIFIER + "reward[root-exit 0", VERIFIER + "reward[user-exit 0")),
    ("reward file empty", ("reward_txt[-is empty",)),
    ("reward file: NaN", ("reward_txt[nan",)),
    ("reward file: two numbers", ("reward_txt[1 1",)),
    ("reward file: 1e309", ("reward_txt[1e309",)),
    ("reward file: not UTF-8", ("reward_txt[\\xff",)),
    ("verifier that never ends", (VERIFIER + "verifier_never_ends",)),
    ("engine command that does not exist", ("engine_command_does_not_exist", "engine_command_that_does_not_exist")),
    ("engine that dies in mid-answer", (BROKER + "engine_dies_in_mid_answer",)),
    ("engine that answers nothing", (BROKER + "engine_answers_nothing",)),
    ("engine that answers 200 MB without an end", (BROKER + "engine_answers_200_mb",)),
    ("instance that exits at once", (TRIAL + "instance_exits_at_once",)),
    ("instance that prints binary garbage", (TRIAL + "instance_prints_binary_garbage",)),
    ("instance that fills its disk", (TRIAL + "instance_fills_its_disk",)),
    ("instance that forks without end", (TRIAL + "instance_forks_without_end",)),
    ("instance that closes its engine socket", (TRIAL + "instance_closes_its_engine_socket",)),
    ("instance that sends half a request", (TRIAL + "instance_sends_half_a_request",)),
    (".sia on a full disk", (INPUT + "state_on_a_full_disk", "test_repository.py::test_bad_input_full_disk")),
    (".sia read-only", (INPUT + "state_on_a_read_only_disk",)),
    (".sia from a newer version", (INPUT + "state_of_a_newer_version",)),
    ("a second `sia supervise`", ("test_supervisor.py::test_bad_input_second_supervise",)),
    ("Ctrl-C before the first trial", ("ctrl_c_before_the_first_trial",)),
    ("Ctrl-C while trials run", ("ctrl_c_while_trials_run",)),
    ("a second Ctrl-C", ("a_second_ctrl_c",)),
)
SHOWN = 3  # lines of a message


def number_of(node: str) -> int | None:
    """The number of the case that a test proves; None for a further case without a number of its own."""
    for number, (_, parts) in enumerate(CASES, 1):
        if any(part in node for part in parts):
            return number
    return None


def summarise(terminal: Any, reports: Iterable[pytest.TestReport], mark_expression: str) -> None:
    """Write the table, if these tests were asked for: number, case, and the message that each test showed."""
    if "bad_input" not in mark_expression:
        return
    terminal.section("bad input, and what a user is told")
    found: dict[int | None, list[pytest.TestReport]] = {}
    for report in reports:
        found.setdefault(number_of(report.nodeid), []).append(report)
    for number in [*range(1, len(CASES) + 1), None]:
        title = CASES[number - 1][0] if number else "further cases"
        terminal.write_line(f"{number or '·':>3} {title}", bold=True)
        for report in found.get(number, []):
            terminal.write_line(f"      {report.outcome} {report.nodeid.rpartition('::')[2]}")
            lines = [line for line in report.capstdout.splitlines() if line.strip()]
            for line in lines[:SHOWN]:
                terminal.write_line(f"        {line[:200]}")
        if number and number not in found:
            terminal.write_line("      not run")
