"""The server that xllamacpp carries, on a socket that only this process can reach."""

from __future__ import annotations

import http.client
import json
import os
import socket
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.engines.serve import EngineError
from orchestrator.errors import ConfigError

_BATCH = 256  # prompt tokens between two looks at whether someone still waits


@dataclass(frozen=True)
class LlamaOptions:
    """How a model is loaded. `context`: tokens of each of `parallel` requests at once. `threads` None: all cores."""

    context: int = 8192
    parallel: int = 2
    threads: int | None = None


class LlamaServer:
    """One loaded model. Thread-safe. Raises ConfigError if it can't be loaded."""

    def __init__(self, model: Path, options: LlamaOptions) -> None:
        import xllamacpp

        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(model)
        parameters.n_ctx = options.context * options.parallel
        parameters.n_parallel = options.parallel
        parameters.n_batch = parameters.n_ubatch = _BATCH
        parameters.cpuparams.n_threads = options.threads or len(os.sched_getaffinity(0))
        parameters.n_threads_http = options.parallel + 8
        parameters.verbosity = 0
        parameters.ui = False
        with tempfile.TemporaryDirectory(prefix="sia-llama-") as directory:
            path = Path(directory) / "model.sock"  # by its ending it is known to be a socket
            parameters.hostnames, parameters.port = [str(path)], 0
            try:
                self._server = xllamacpp.Server(parameters)
                self._address = os.open(path, os.O_PATH)  # reachable by this number, and by nobody else
            except (RuntimeError, OSError) as error:
                fix = "free memory, give less --context or --parallel, or check the file: sia engines check MODEL"
                raise ConfigError(f"the model can't be loaded: {error}", where=str(model), fix=fix) from None
        self.limit = min(int(self.ask("GET", "/props")["default_generation_settings"]["n_ctx"]), options.context)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request, one JSON reply. Raises EngineError."""
        connection, response = self._open(method, path, body)
        try:
            return _decoded(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise EngineError("engine", f"the model's server failed: {error}") from None
        finally:
            connection.close()

    def stream(self, body: Any) -> Generator[dict[str, Any], None, None]:
        """A completion: one event for each piece of prompt that was read and each piece of text that was written.

        Closing the iterator cancels the completion. Raises EngineError.
        """
        connection, response = self._open("POST", "/completion", {**body, "stream": True, "return_progress": True})
        try:
            if response.status != 200:
                _decoded(response.status, response.read())
            for line in response:
                if line.startswith((b"data:", b"error:")):
                    event = _decoded(200, line.partition(b":")[2])
                    yield event
                    if event.get("stop"):
                        return
            raise EngineError("engine", "the model's server ended in mid-answer")
        except (OSError, http.client.HTTPException) as error:
            raise EngineError("engine", f"the model's server failed: {error}") from None
        finally:
            response.close()
            connection.close()

    def _open(self, method: str, path: str, body: Any) -> tuple[_Connection, http.client.HTTPResponse]:
        connection = _Connection(self._address)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", "Connection": "close"})
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise EngineError("engine", f"the model's server failed: {error}") from None


class _Connection(http.client.HTTPConnection):
    def __init__(self, address: int) -> None:
        super().__init__("localhost")
        self._address = address

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(f"/proc/self/fd/{self._address}")


def _decoded(status: int, data: bytes) -> Any:
    try:
        found = json.loads(data)
    except ValueError:
        raise EngineError("engine", f"the model's server sent no JSON (status {status})") from None
    if isinstance(found, dict) and "error" in found:
        error = found["error"] if isinstance(found["error"], dict) else {"message": found["error"]}
        code = "too_long" if error.get("type") == "exceed_context_size_error" else "engine"
        raise EngineError(code, str(error.get("message", "unknown"))[:300])
    if status != 200:
        raise EngineError("engine", f"the model's server answered with status {status}")
    return found
