"""Ctrl-C that falls where Python can't raise is not lost."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, time, weakref
from orchestrator import cli

class Thing: pass

def interrupted(reference):
    raise KeyboardInterrupt

def build_app(arguments):
    def command(*arguments, **options):
        thing = Thing()
        reference = weakref.ref(thing, interrupted)
        del thing
        time.sleep(20)
    return command

cli.build_app = build_app
cli.main([])
"""


def test_an_interrupt_in_a_callback_ends_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=15, check=False)
    assert done.returncode == 130
    assert done.stderr == "sia: interrupted\n"
