"""Compiles one schema in a process of its own: `python -I -m …xml_schema_validator.process [--no-cdata]`.

The schema comes from a candidate and is hostile. Limits as for checking answers (`answer_process`): 1 GB, and 4 s of
processor time. The schema on stdin, one JSON document on stdout: `{"edges", "accepting"}` or `{"refused", "why"}`.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Any

from lxml import etree

from orchestrator.answer_process import MEMORY, OPTIONS, compile_schema

SECONDS = 4.0  # of processor time
MAX_SCHEMA = 256 * 1024  # bytes


def main(arguments: list[str]) -> int:
    """Compile what stands on stdin."""
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
        compile_schema(document)  # what libxml2 refuses is not read any further
        root = etree.fromstring(document, etree.XMLParser(**OPTIONS))  # type: ignore[arg-type]
        found = read(root, cdata=cdata)
    except Unsupported as error:
        return {"refused": error.construct, "why": str(error)}
    except (ValueError, etree.LxmlError, MemoryError, RecursionError) as error:
        return {"refused": "schema", "why": f"schema: {str(error)[:300] or type(error).__name__}"}
    return {"edges": found.edges, "accepting": sorted(found.accepting)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
