"""`python -m orchestrator.engines.xml_schema_validator SCHEMA.xsd [--prefix TEXT] [--fuzz COUNT | --close TEXT]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestrator.engines.xml_schema_validator import Unsupported, fuzz, guide


def main() -> int:
    """Print the grammar, random answers, or the end of a cut answer. Exit code 1: the schema can't be compiled."""
    parser = argparse.ArgumentParser(prog="xml_schema_validator", description="what answers a schema allows")
    parser.add_argument("schema", type=Path)
    parser.add_argument("--prefix", default="", help="the given beginning of the answer")
    parser.add_argument("--no-cdata", action="store_true", help="without CDATA sections")
    parser.add_argument("--fuzz", type=int, metavar="COUNT", help="print random valid answers")
    parser.add_argument("--close", metavar="TEXT", help="print the shortest end of an answer that was cut off")
    options = parser.parse_args()
    try:
        found = guide(options.schema.read_bytes(), cdata=not options.no_cdata)
    except OSError as error:
        print(f"{options.schema}: {error.strerror}", file=sys.stderr)
        return 2
    except Unsupported as error:
        print(f"{options.schema}: can't be compiled: {error}", file=sys.stderr)
        return 1
    state = found.automaton.walk(options.prefix)
    ending = found.ending(options.prefix, (options.close or "").encode())
    if state is None or ending is None:
        print("no valid answer begins like this", file=sys.stderr)
        return 1
    if options.close is not None:
        print(ending[1])
    elif options.fuzz is not None:
        for seed in range(options.fuzz):
            print(options.prefix + fuzz(found.automaton, seed, state=state))
    else:
        print(found.grammar(options.prefix), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
