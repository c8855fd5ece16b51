"""Compiles one schema in a process of its own: `python -I process.py [--no-cdata]`.

The schema comes from a candidate and is hostile. Limits as for checking answers (`answer_process`): 1 GB, and 4 s of
processor time. The schema on stdin, one JSON document on stdout: `{"edges", "accepting"}` or `{"refused", "why"}`.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from lxml import etree

SECONDS = 4.0  # of processor time
MAX_SCHEMA = 256 * 1024  # bytes
FAULT = "fault"  # the construct that is named where this program itself is wrong
_NOT_TAKEN = re.compile(r"(?:a |<)(\w+)>? is not taken(?:: )?(.*)", re.DOTALL)  # said by answer_process.compile_schema


def main(arguments: list[str]) -> int:
    """Compile what stands on stdin."""
    from orchestrator.answer_process import MEMORY

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)  # no Python handler: it must end a loop inside libxml2
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    document = sys.stdin.buffer.read(MAX_SCHEMA + 1)
    json.dump(compiled(document, cdata="--no-cdata" not in arguments), sys.stdout, separators=(",", ":"))
    return 0


def compiled(document: bytes, *, cdata: bool) -> dict[str, Any]:
    """The automaton of a schema, or why there is none, as JSON."""
    from orchestrator.engines.xml_schema_validator.errors import Unsupported
    from orchestrator.engines.xml_schema_validator.reader import read

    try:
        if len(document) > MAX_SCHEMA:
            raise Unsupported("size", f"more than {MAX_SCHEMA} bytes")
        found = read(_parsed(document), cdata=cdata)
    except Unsupported as error:
        return {"refused": error.construct, "why": error.why}
    except (MemoryError, RecursionError) as error:
        return {"refused": "size", "why": f"compiling takes too much memory ({type(error).__name__})"}
    except Exception as error:  # nobody foresaw it: it must not look as if the schema were too large, or wrong
        return {"refused": FAULT, "why": f"{_place(error)}: {type(error).__name__}: {str(error)[:200]}"}
    return {"edges": found.edges, "accepting": sorted(found.accepting)}


def _parsed(document: bytes) -> etree._Element:
    """The document, if libxml2 takes it as a schema: what it refuses is not read any further. Raises Unsupported."""
    from orchestrator.answer_process import OPTIONS, compile_schema
    from orchestrator.engines.xml_schema_validator.errors import Unsupported

    try:
        compile_schema(document)
        return etree.fromstring(document, etree.XMLParser(**OPTIONS))  # type: ignore[arg-type]
    except (ValueError, etree.LxmlError) as error:
        said = str(error)[:300] or type(error).__name__
        if found := _NOT_TAKEN.fullmatch(said):
            name, why = found[1], found[2] or "not taken"
            raise Unsupported(name if name.isupper() else f"xs:{name}", why) from None
        raise Unsupported("schema", said) from None


def _place(error: Exception) -> str:
    """Where an exception was raised, as `file.py:line`."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else "?"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # -I leaves out where the caller has found us
    sys.exit(main(sys.argv[1:]))
