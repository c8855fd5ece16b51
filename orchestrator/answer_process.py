"""Checks answers against one schema, in a process of its own: `python -I answer_process.py`.

The schema comes from a candidate and is hostile: it may take all memory or never end, and so may a check against it.
The limits are this process's: 1 GB, 2 s of processor time for each step; it dies of them and its owner notices. Frames
on stdin and stdout: 4 bytes length, then the bytes. First the schema, answered by {"fault"}, then answers, each
answered by {"error", "action", "key"}. Standard library and lxml only.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
from typing import Any

from lxml import etree

MEMORY = 1 << 30
SECONDS = 2.0
XSD = "{http://www.w3.org/2001/XMLSchema}"
OPTIONS = {
    "resolve_entities": False,
    "no_network": True,
    "load_dtd": False,
    "remove_comments": True,
    "remove_pis": True,
}


def main() -> int:
    """Serve until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)  # no Python handler: it must end a loop inside libxml2
    schema: etree.XMLSchema | None = None
    document = _read()
    if document is None:
        return 0
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        schema, fault = compile_schema(document), None
    except (ValueError, etree.LxmlError, MemoryError, RecursionError) as error:
        fault = str(error)[:300] or type(error).__name__
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    _write({"fault": fault})
    while (answer := _read()) is not None:
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            result = check(answer, schema)
        except (MemoryError, RecursionError) as error:
            result = {"error": type(error).__name__, "action": "", "key": ""}
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        _write(result)
    return 0


def compile_schema(document: bytes) -> etree.XMLSchema:
    """The compiled schema. Raises ValueError for imports, includes and DTDs, lxml's errors for the rest."""
    return etree.XMLSchema(schema_root(document))


def schema_root(document: bytes) -> etree._Element:
    """A schema that is one file, parsed and not compiled. Raises as `compile_schema` does."""
    if b"<!DOCTYPE" in document or b"<!ENTITY" in document:
        raise ValueError("a DOCTYPE is not taken")
    root = etree.fromstring(document, etree.XMLParser(**OPTIONS))  # type: ignore[arg-type]
    if root.getroottree().docinfo.internalDTD is not None:  # in another encoding than the look above knows
        raise ValueError("a DOCTYPE is not taken")
    for element in root.iter(f"{XSD}import", f"{XSD}include", f"{XSD}redefine", f"{XSD}override"):
        raise ValueError(f"<{etree.QName(element).localname}> is not taken: the schema must be one file")
    return root


def check(answer: bytes, schema: etree.XMLSchema | None) -> dict[str, Any]:
    """What one answer is: why it is invalid (None if it is not), its action's name, a key that equal actions share."""
    try:
        root = etree.fromstring(answer, etree.XMLParser(encoding="utf-8", **OPTIONS))  # type: ignore[arg-type]
    except (etree.XMLSyntaxError, ValueError) as error:
        return {"error": f"not well-formed: {str(error)[:300]}", "action": "", "key": ""}
    if root.getroottree().docinfo.internalDTD is not None:  # in CDATA, `<!DOCTYPE html>` is a script's text
        return {"error": "a DOCTYPE is not taken", "action": "", "key": ""}
    invalid = None
    if schema is not None and not schema.validate(root):
        invalid = str(schema.error_log.last_error.message)[:300]  # type: ignore[attr-defined]  # lxml-stubs lack it
    for element in root.iter():
        element.text = (element.text or "").strip() or None
        element.tail = (element.tail or "").strip() or None
    return {"error": invalid, "action": etree.QName(root).localname, "key": hashlib.sha256(_one_form(root)).hexdigest()}


def _one_form(root: etree._Element) -> bytes:
    """The same bytes for equal elements; for one that has no canonical form (a relative namespace) its plain bytes."""
    try:
        return etree.tostring(root, method="c14n")
    except etree.LxmlError:
        return etree.tostring(root, encoding="utf-8")


def _read() -> bytes | None:
    head = sys.stdin.buffer.read(4)
    return sys.stdin.buffer.read(int.from_bytes(head, "big")) if len(head) == 4 else None


def _write(value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        code = main()
    except BrokenPipeError:
        code = 0
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # nothing is flushed to a closed pipe at exit
    os._exit(code)
