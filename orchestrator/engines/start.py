"""How an engine program begins: what is missing or wrong becomes a message on stderr and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection

from orchestrator.engines import extras
from orchestrator.engines.serve import Model, serve
from orchestrator.errors import ConfigError, SiaError


def run(name: str, packages: Collection[str], make: Callable[[], Model]) -> int:
    """Serve the model that `make` returns on fd 0; returns the exit code.

    `packages` are the modules that the extra called `name` installs: without one of them, that is what is said.
    """
    try:
        serve(make())
    except ModuleNotFoundError as error:
        if error.name not in packages:
            raise
        return _say(name, ConfigError(f"the package {error.name} is missing", fix=extras.install(name)))
    except SiaError as error:
        return _say(name, error)
    except KeyboardInterrupt:
        return 130
    return 0


def _say(name: str, error: SiaError) -> int:
    print(f"{name} engine: {error.render()}", file=sys.stderr)
    return error.exit_code
