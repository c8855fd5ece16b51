"""`python -m orchestrator.engines.openai MODEL [--url URL] [--key-variable NAME] [--kind KIND] …`."""

from __future__ import annotations

import argparse
import sys

from orchestrator.engines import start
from orchestrator.engines.openai.dialects import DIALECTS
from orchestrator.engines.serve import Model


def main(arguments: list[str] | None = None) -> int:
    """Look whether the server answers, and serve on fd 0."""
    parser = argparse.ArgumentParser(prog="openai", description="an engine behind an OpenAI-compatible server")
    parser.add_argument("model")
    parser.add_argument("--url", help="the server's address, up to /v1 (default: OpenAI's)")
    parser.add_argument("--key-variable", default="OPENAI_API_KEY", help="the variable that holds the key")
    parser.add_argument("--kind", choices=list(DIALECTS), help="how it takes grammars (default: found out)")
    parser.add_argument("--context", type=int, help="tokens of one request (default: what the server tells)")
    parser.add_argument("--attempts", type=int, default=3, help="answers until one is valid, where no grammar guides")
    parser.add_argument("--retries", type=int, default=4, help="of requests that hit a rate limit or a failure")
    parser.add_argument("--patience", type=float, default=110, help="seconds for all of that, below the broker's 120")
    parser.add_argument("--temperature", type=float, help="default: the server's")
    options = parser.parse_args(arguments)
    if not 1 <= options.patience <= 115:
        parser.error("--patience from 1 to 115")

    def make() -> Model:
        from orchestrator.engines.openai.model import ChatModel
        from orchestrator.engines.openai.server import ChatServer, ServerOptions

        server = ChatServer(
            ServerOptions(
                url=options.url,
                model=options.model,
                key_variable=options.key_variable,
                kind=options.kind,
                limit=options.context,
                retries=max(0, options.retries),
                patience=options.patience,
            )
        )
        return ChatModel(server, attempts=max(1, options.attempts), temperature=options.temperature)

    return start.run("openai", ("openai", "genai_prices"), make)


if __name__ == "__main__":
    sys.exit(main())
