"""The `sia` command. Each command's module is imported only when that command is called."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import App

    from orchestrator.errors import SiaError

COMMANDS: tuple[tuple[str, str, str], ...] = (
    # words, where the function is, one-line help
    ("doctor", "orchestrator.cli.doctor:doctor", "What this machine can and cannot isolate, and how to fix it."),
    ("demo", "orchestrator.cli.demo:demo", "A campaign, a promotion and a rollback in a throw-away repository."),
    ("campaign run", "orchestrator.cli.campaign:run", "Run a campaign file."),
    ("campaign list", "orchestrator.cli.campaign:list_campaigns", "List campaigns."),
    ("campaign show", "orchestrator.cli.campaign:show", "Show verdicts and trials of a campaign."),
    ("campaign resume", "orchestrator.cli.campaign:resume", "Finish a campaign that was interrupted."),
    ("campaign stop", "orchestrator.cli.campaign_steps:stop", "Stop a running campaign; it can be resumed."),
    ("campaign rerun", "orchestrator.cli.campaign_steps:rerun", "Run a trial again that gave no valid result."),
    ("campaign report", "orchestrator.cli.campaign:report", "Write a campaign's report with figures."),
    ("candidate list", "orchestrator.cli.candidate:list_candidates", "List candidates and proposals of the agent."),
    ("task check", "orchestrator.cli.task:check", "Check tasks: the oracle gives reward 1, nothing gives 0."),
    ("promote", "orchestrator.cli.promote:promote", "Promote a candidate that was judged better."),
    ("rollback", "orchestrator.cli.promote:rollback", "Go back to an earlier generation."),
    ("generations", "orchestrator.cli.promote:generations", "Show the ledger of generations."),
    ("conformance", "orchestrator.cli.conformance:conformance", "Check that a command keeps the instance contract."),
    ("env build", "orchestrator.cli.env:build", "Build the Python environment of a candidate."),
    ("run", "orchestrator.cli.supervise:run", "Run the main instance once, in the foreground."),
    ("supervise", "orchestrator.cli.supervise:supervise", "Keep the main instance alive (what restart.sh runs)."),
    ("send", "orchestrator.cli.supervise:send", "Send a message to the main instance, or to another one."),
    ("kill", "orchestrator.cli.steps:kill", "Kill a running instance."),
    ("pause", "orchestrator.cli.steps:pause", "Stop a running instance where it is."),
    ("resume", "orchestrator.cli.steps:resume", "Let a paused instance go on."),
    ("status", "orchestrator.cli.status:status", "One look at what runs."),
    ("watch", "orchestrator.cli.watch:watch", "The live dashboard: watch the instances, step in."),
    ("gc", "orchestrator.cli.gc:collect", "Remove what nothing refers to any more."),
    ("log show", "orchestrator.cli.log:show", "Show what a trial or the main instance asked and was answered."),
    ("log diff", "orchestrator.cli.log:diff", "Compare the journals of two trials."),
    ("log verify", "orchestrator.cli.log:verify", "Check a journal's hash chain."),
    ("log export", "orchestrator.cli.log:export", "Export a trajectory (ATIF)."),
    ("engines list", "orchestrator.cli.engines:list_engines", "List engines and known models."),
    ("engines check", "orchestrator.cli.engines:check", "Start an engine and ask it for one answer."),
    ("engines fetch", "orchestrator.cli.engines:fetch", "Fetch a known model into the cache."),
    ("sandbox run", "orchestrator.cli.sandbox:run", "Run any command in a sandbox, and show what it changed."),
    ("sandbox diff", "orchestrator.cli.sandbox_diff:diff_command", "List what an upper layer changed."),
)

GROUPS = {
    "campaign": "Evaluation campaigns.",
    "candidate": "Candidates.",
    "task": "Tasks.",
    "env": "Agent environments.",
    "log": "Journals.",
    "engines": "Engines and models.",
    "sandbox": "Sandboxes.",
}


def build_app(arguments: Sequence[str] = ()) -> App:
    """The command tree, without importing any command.

    Lists show the one-line help of `COMMANDS`. The command that `arguments` name explains itself by its docstring
    instead, which has exit codes and whatever else is to be known.
    """
    from cyclopts import App, Parameter

    app = App(
        name="sia",
        help="A sandboxed self-improvement orchestrator for LLM agents.",
        version=_version,
        default_parameter=Parameter(negative=()),  # no --no-json beside --json
        suppress_keyboard_interrupt=False,  # it would end without a word; `main` says that it was interrupted
    )
    groups: dict[str, App] = {}
    asked = [argument for argument in arguments if not argument.startswith("-")]
    for words, target, text in COMMANDS:
        *group, name = words.split()
        parent = app
        for word in group:
            if word not in groups:
                groups[word] = App(name=word, help=GROUPS[word])
                app.command(groups[word])
            parent = groups[word]
        parent.command(target, name=name, help=None if asked[: len(group) + 1] == words.split() else text)
    return app


def _version() -> str:
    from importlib.metadata import version

    return version("sia-orchestrator")


def _unraisable(happened: sys.UnraisableHookArgs) -> None:
    """Ctrl-C that fell into a place where Python can't raise (a weak reference's callback during an import, say) is
    not lost: it comes again a moment later."""
    if happened.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(happened)
        return
    import signal
    import threading

    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))  # a real one: it also ends a sleep
    timer.daemon = True
    timer.start()


def _met(error: Exception) -> SiaError | None:
    """In words what a disk, its rights or the database did to us in a place that did not expect it; None: our fault."""
    import sqlite3

    from orchestrator.errors import Failed

    if isinstance(error, sqlite3.Error):
        fix = "try again; if it stays, free disk space and see who works in the state directory: `sia status`"
        return Failed(f"the database can't be used: {error}", where="sia.db", fix=fix)
    if isinstance(error, OSError):
        where = error.filename if isinstance(error.filename, str) else ""
        fix = "make it a place that SIA may write (see `sia doctor`), free disk space, and try again"
        return Failed(error.strerror or str(error), where=where, fix=fix)
    return None


def _say(error: SiaError) -> None:
    """On stderr, cleaned: it may name files that an instance or a candidate named."""
    from orchestrator.untrusted import one_line, printable

    error.where = one_line(error.where, 2000)
    print(f"sia: {printable(error.render())}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code. Every SiaError becomes a message on stderr, never a traceback; so does
    what the disk or the database refuses."""
    from orchestrator.errors import SiaError

    sys.unraisablehook = _unraisable

    try:
        given = sys.argv[1:] if arguments is None else arguments
        code = build_app(given)(given, exit_on_error=False, print_error=True, result_action="return_value")
    except SiaError as error:
        _say(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("sia: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away; say nothing at exit
        sys.exit(0)
    except Exception as error:
        from cyclopts import CycloptsError

        if isinstance(error, CycloptsError):
            sys.exit(2)  # cyclopts has printed what is wrong
        met = _met(error)
        if met is None:
            raise
        _say(met)
        sys.exit(met.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
