"""`python -m orchestrator.engines.llama MODEL [--context N] [--parallel N] [--threads N] [--temperature T] …`."""

from __future__ import annotations

import argparse
import sys

from orchestrator.engines import start
from orchestrator.engines.models import located
from orchestrator.engines.serve import Model


def main(arguments: list[str] | None = None) -> int:
    """Load the model and serve on fd 0."""
    parser = argparse.ArgumentParser(prog="llama", description="an engine with a local GGUF model")
    parser.add_argument("model", help="a name of `sia engines list`, or a path")
    parser.add_argument("--context", type=int, default=8192, help="tokens of one request, prompt and answer")
    parser.add_argument("--parallel", type=int, default=2, help="requests at once; more of them wait")
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--no-cdata", action="store_true", help="guide answers without CDATA sections")
    options = parser.parse_args(arguments)
    if options.context < 256 or not 1 <= options.parallel <= 64 or not 0 <= options.temperature <= 5:
        parser.error("--context from 256 up, --parallel 1 to 64, --temperature 0 to 5")

    def make() -> Model:
        model = located(options.model)
        from orchestrator.engines.llama.model import LlamaModel
        from orchestrator.engines.llama.server import LlamaOptions, LlamaServer

        server = LlamaServer(model, LlamaOptions(options.context, options.parallel, options.threads))
        return LlamaModel(server, temperature=options.temperature, cdata=not options.no_cdata)

    return start.run("llama", ("xllamacpp",), make)


if __name__ == "__main__":
    sys.exit(main())
