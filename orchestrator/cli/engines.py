"""`sia engines list|check|fetch`."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from orchestrator.cli.options import Json
from orchestrator.config import Settings, load_settings
from orchestrator.engines import extras, models, named
from orchestrator.errors import Failed, SiaError, UsageError
from orchestrator.home import open_home

_SCHEMA = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="answer"><xs:simpleType>'
    '<xs:restriction base="xs:token"><xs:enumeration value="yes"/><xs:enumeration value="no"/></xs:restriction>'
    "</xs:simpleType></xs:element></xs:schema>"
)


def list_engines(*, as_json: Json = False) -> int:
    """List the engines of sia.toml, and models that `llama:MODEL` knows by name."""
    settings, _ = _settings()
    installed = importlib.util.find_spec("xllamacpp") is not None
    known: list[dict[str, Any]] = [
        {
            "name": f"{named.LLAMA}{model.name}",
            "fetched": (models.directory() / model.file).exists(),
            "megabytes": model.megabytes,
            "license": model.license,
            "about": model.about,
        }
        for model in models.KNOWN.values()
    ]
    if as_json:
        own = {name: list(engine.command) for name, engine in settings.engines.items()}
        print(json.dumps({"engines": own, "models": known, "llama_installed": installed}, indent=2))
        return 0
    for name, engine in settings.engines.items():
        print(f"{name}\t{' '.join(engine.command)}")
    for model in known:
        state = "fetched" if model["fetched"] else f"not fetched ({model['megabytes']} MB)"
        print(f"{model['name']}\t{state}; {model['license']}; {model['about']}")
    print(f"{named.LLAMA}PATH\tany GGUF file")
    if not installed:
        print(f"llama engines need the extra: {extras.install('llama')}", file=sys.stderr)
    return 0


def check(engine: str, /, *, timeout: float = 120.0, as_json: Json = False) -> int:
    """Start an engine, ask it for its token limit, a count and one answer guided by a schema. Exit 1 if one fails.

    Parameters
    ----------
    engine
        An engine of sia.toml, or `llama:MODEL`; a known model's file is compared with its hash too.
    timeout
        Seconds for its start, and for each answer.
    """
    settings, checkout = _settings()
    command = named.command_of(engine, settings.engines)
    if command is None:
        fix = f"name one of: {', '.join([*settings.engines, 'llama:MODEL'])}"
        raise UsageError(f"there is no engine {engine!r}", where="sia engines check", fix=fix)
    named.prepare(engine, settings.engines, checkout, _say)
    if (model := engine.removeprefix(named.LLAMA)) in models.KNOWN and engine not in settings.engines:
        models.checked(model)
    found = _asked(engine, command, checkout, timeout)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            print(f"{name.replace('_', ' ')}\t{value}")
    return 0 if found["valid"] else 1


def fetch(model: str, /, *, again: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Fetch a known model into the user's cache directory. It is checked by its hash.

    Parameters
    ----------
    model
        A name of `sia engines list`, without `llama:`.
    again
        Fetch it even if it is there.
    """
    print(models.fetch(model.removeprefix(named.LLAMA), _say, again=again))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _settings() -> tuple[Settings, Path]:
    """Of the repository here; outside of one: none."""
    try:
        checkout = open_home().checkout
    except SiaError:
        return Settings(), Path.cwd()
    return load_settings(checkout), checkout


def _asked(name: str, command: tuple[str, ...], checkout: Path, timeout: float) -> dict[str, Any]:
    from orchestrator.answers import checker, close_checkers
    from orchestrator.engines.host import EngineHost
    from orchestrator.protocol import Request

    prompt = Request("token_count", system="Answer.", context="Is water wet?", schema=_SCHEMA, seed=1)
    answer = Request("infer_xml", "Answer.", _SCHEMA, "Is water wet?", seed=1, max_tokens=64)
    with (
        tempfile.TemporaryDirectory(prefix="sia-check-") as directory,
        EngineHost(name, command, checkout, Path(directory) / "log") as host,
    ):
        begun = time.monotonic()
        limit = host.wait_ready(timeout)
        started = time.monotonic() - begun
        count = _reply(host, prompt, timeout)
        text = _reply(host, answer, timeout)
        seconds = time.monotonic() - begun - started
    fault = checker(_SCHEMA.encode()).check(text).error
    close_checkers()
    return {
        "token_limit": limit,
        "token_count": count,
        "answer": text,
        "valid": fault is None,
        "fault": fault or "none",
        "start_seconds": round(started, 2),
        "answer_seconds": round(seconds, 2),
    }


def _reply(host: Any, request: Any, timeout: float) -> str:
    from orchestrator.protocol import write_request
    from orchestrator.replies import ReplyReader

    reader, text = ReplyReader(), ""
    with host.connect() as line:
        line.settimeout(timeout)
        line.sendall(write_request(request))
        while not reader.done:
            try:
                data = line.recv(1 << 16)
            except TimeoutError:
                raise Failed(
                    f"no answer within {timeout:g} s", where=f"engine {host.name}", fix="see its log"
                ) from None
            if not data:
                break
            text += reader.feed(data)
    if reader.error:
        raise Failed(
            f"{request.kind}: {' '.join(reader.error)}", where=f"engine {host.name}", fix="see docs/engines.md"
        )
    return text
