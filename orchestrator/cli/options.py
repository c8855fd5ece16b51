"""Options that many commands share, each with one meaning."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON on stdout.")]
DryRun = Annotated[bool, Parameter(name="--dry-run", negative="", help="Only say what would happen.")]
