#!/usr/bin/env python3
"""Talk to the supervisor.

usage: propose BRANCH WHY [DIRECTORY]   send a branch of the clone (default: /root/data/sia) as a candidate
       results [CAMPAIGN]               verdicts and mean rewards of a campaign that has ended (default: the latest)
       status                           whether the supervisor runs, and which campaigns ended last
       trial BRANCH TASK                a test instance of a branch, on one task: this version refuses it
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

SOCKET = "/run/sia/supervisor.sock"
CLONE = "/root/data/sia"
BASE = "origin/main"
BUNDLE_MAX = 16 * 1024 * 1024  # bytes
SECONDS = 300.0  # for an answer
EOT = b"\x04"


def request(name: str, attributes: Mapping[str, str], text: str = "") -> bytes:
    """One request as XML, with its end mark."""
    parts = [name, *(f'{key}="{_escape(value)}"' for key, value in attributes.items())]
    return f"<{' '.join(parts)}>{text}</{name}>".encode("utf-8", "replace") + EOT


def ask(document: bytes, path: str) -> str:
    """Send a request and return the answer. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(path)
        connection.sendall(document)
        answer = b""
        while EOT not in answer:
            data = connection.recv(65536)
            if not data:
                raise ConnectionError("the supervisor closed the connection without an answer")
            answer += data
    return answer.partition(EOT)[0].decode("utf-8", "replace")


def make_bundle(branch: str, directory: str) -> bytes:
    """The commits of `branch` since the code that runs now. Raises RuntimeError with what to do."""

    def git(*arguments: str) -> bytes:
        done = subprocess.run(
            ["git", "-C", directory, *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    git("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
    if not git("rev-list", "--max-count=1", f"{BASE}..refs/heads/{branch}"):
        raise RuntimeError(f"{branch} has no commit beyond {BASE}: commit your change first")
    if git("status", "--porcelain", "--untracked-files=no"):
        print(f"note: {directory} has changes that are not committed; they are not part of the proposal")
    bundle = git("bundle", "create", "--quiet", "-", f"{BASE}..refs/heads/{branch}")
    if len(bundle) > BUNDLE_MAX:
        raise RuntimeError(f"the commits take {len(bundle)} bytes, at most {BUNDLE_MAX} are accepted")
    return bundle


def _escape(text: str) -> str:
    text = "".join(character if character.isprintable() else " " for character in text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _document(words: Sequence[str]) -> bytes | None:
    """The request that the command line asks for, None if it makes no sense."""
    match list(words):
        case ["propose", branch, why, *rest] if len(rest) < 2 and why.strip():
            content = base64.b64encode(make_bundle(branch, rest[0] if rest else CLONE)).decode()
            return request("propose", {"branch": branch, "why": why}, content)
        case ["results", *rest] if len(rest) < 2:
            return request("results", {"campaign": rest[0]} if rest else {})
        case ["status"]:
            return request("status", {})
        case ["trial", branch, task]:
            return request("trial", {"branch": branch, "task": task})
    return None


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, 1 failed, 2 wrong usage."""
    try:
        document = _document(arguments)
        if document is None or "--help" in arguments:
            print(__doc__, file=sys.stderr)
            return 0 if "--help" in arguments else 2
        print(ask(document, os.environ.get("SIA_SUPERVISOR_SOCKET", SOCKET)))
    except FileNotFoundError as error:
        print(f"{arguments[0]}: {error.filename or SOCKET} is not there: no supervisor listens", file=sys.stderr)
        return 1
    except (RuntimeError, OSError) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
