"""Runs `venv`, `uv` and `pip` in an environment of their own. No build step runs: wheels only, hashes required.

Kept of the caller's environment: where packages come from (index, mirror, certificates, proxy, credentials for these)
as PIP_*, UV_* and proxy variables, and the same keys of pip's configuration files. Not kept: everything else, above
all what would change what is installed (constraints, targets, build options) and the caller's home.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator import scratch
from orchestrator.errors import Failed

SECONDS = 900.0
_PIP_KEYS = frozenset(
    (
        "INDEX_URL",
        "EXTRA_INDEX_URL",
        "FIND_LINKS",
        "NO_INDEX",
        "TRUSTED_HOST",
        "CERT",
        "CLIENT_CERT",
        "PROXY",
        "DEFAULT_TIMEOUT",
        "TIMEOUT",
        "RETRIES",
        "KEYRING_PROVIDER",
    )
)
_UV_KEYS = frozenset(
    (
        "INDEX_URL",
        "DEFAULT_INDEX",
        "INDEX",
        "EXTRA_INDEX_URL",
        "FIND_LINKS",
        "NO_INDEX",
        "INDEX_STRATEGY",
        "OFFLINE",
        "INSECURE_HOST",
        "NATIVE_TLS",
        "SYSTEM_CERTS",
        "HTTP_TIMEOUT",
        "KEYRING_PROVIDER",
    )
)
_OTHER = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the caller that say where packages come from."""
    names = {f"PIP_{name}" for name in _PIP_KEYS} | {f"UV_{name}" for name in _UV_KEYS} | set(_OTHER)
    names |= {name.lower() for name in _OTHER[:4]}
    credentials = re.compile(r"UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)")
    return {key: value for key, value in environment.items() if key in names or credentials.fullmatch(key)}


def create(base: Path, target: Path, cache: Path) -> None:
    """An empty virtual environment (no pip in it) at `target`, in place of what lies there. Raises Failed."""
    shutil.rmtree(target, ignore_errors=True)
    with scratch.directory(cache, "home-") as home:
        argv = [str(base), "-I", "-m", "venv", "--without-pip", "--symlinks", str(target)]
        problem = _run(argv, _environment(home, {}))
    if problem:
        fix = scratch.fix_of(problem, "install the interpreter's venv module (Debian: apt install python3-venv)")
        raise Failed(f"no virtual environment could be made: {problem}", where=str(base), fix=fix)


def install(environment: Path, requirements: str, base: Path, cache: Path) -> str:
    """Make `environment` and install into it by `uv` if it is there, else (or if it fails) by pip; says which.

    Each tries on an empty environment: installers start its interpreter, which would run `.pth` files of packages.
    Raises Failed.
    """
    problems = []
    with scratch.directory(cache, "home-") as home:
        listing = home / "requirements.txt"
        listing.write_text(requirements, encoding="utf-8")
        if uv := shutil.which("uv"):
            create(base, environment, cache)
            if not (problem := _run(_uv(uv, environment, listing), _environment(home, kept(os.environ), cache))):
                return "uv"
            problems.append(f"uv: {problem}")
        if pip := _pip_python(base, cache):
            create(base, environment, cache)
            variables = kept(os.environ) | _pip_configuration(pip)
            if not (problem := _run(_pip(pip, environment, listing), _environment(home, variables, cache))):
                return "pip"
            problems.append(f"pip: {problem}")
    if not problems:
        raise Failed("neither uv nor pip (22.3 or newer) was found", where=str(environment), fix="install uv or pip")
    said = " · ".join(problems)
    raise Failed(
        f"the packages could not be installed: {said}",
        where=str(environment),
        fix=scratch.fix_of(
            said,
            "check names, versions, hashes, wheels for this platform, and the index (PIP_INDEX_URL, UV_INDEX_URL)",
        ),
    )


def compile_sources(environment: Path, base: Path) -> None:
    """Compile all packages now: a read-only mount can't cache that later. What does not compile is left out.

    By the base interpreter without `site`: the environment's own would run the packages' `.pth` files, out here.
    """
    mode = ["--invalidation-mode", "unchecked-hash"]
    _run([str(base), "-I", "-S", "-m", "compileall", "-qq", *mode, str(environment / "lib")], {})


def _uv(uv: str, environment: Path, listing: Path) -> list[str]:
    argv = [uv, "pip", "install", "--no-config", "--python", str(environment / "bin" / "python"), "--link-mode", "copy"]
    argv += ["--no-python-downloads", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    return [*argv, "--quiet", "-r", str(listing)]


def _pip(python: Path, environment: Path, listing: Path) -> list[str]:
    argv = [str(python), "-I", "-m", "pip", "--python", str(environment / "bin" / "python"), "install"]
    argv += ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--no-compile", "--no-input", "--quiet"]
    return [*argv, "--disable-pip-version-check", "--no-warn-script-location", "--progress-bar=off", "-r", str(listing)]


def _pip_python(base: Path, cache: Path) -> Path | None:
    """An interpreter that has a pip which can install into another environment (`--python`: 22.3)."""
    for python in (Path(sys.executable), base):
        if _has_pip(python):
            return python
    tools = cache / "pip"
    if not _has_pip(tools / "bin" / "python"):
        shutil.rmtree(tools, ignore_errors=True)
        _run([str(base), "-I", "-m", "venv", str(tools)], {"PATH": os.defpath})
    return tools / "bin" / "python" if _has_pip(tools / "bin" / "python") else None


def _has_pip(python: Path) -> bool:
    if not python.exists():
        return False
    done = subprocess.run([python, "-I", "-m", "pip", "--version"], capture_output=True, text=True, check=False)
    version = re.match(r"pip (\d+)\.(\d+)", done.stdout)
    return bool(version) and (int(version[1]), int(version[2])) >= (22, 3)  # type: ignore[index]


def _pip_configuration(python: Path) -> dict[str, str]:
    """Where packages come from, as pip's own configuration files say (they are not read during the installation)."""
    done = subprocess.run(
        [python, "-I", "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    found = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        variable = name.upper().replace("-", "_")
        if section in ("global", "install") and variable in _PIP_KEYS and f"PIP_{variable}" not in os.environ:
            try:
                found[f"PIP_{variable}"] = " ".join(str(ast.literal_eval(value)).split())
            except (ValueError, SyntaxError):
                continue
    return found


def _environment(home: Path, variables: Mapping[str, str], cache: Path | None = None) -> dict[str, str]:
    caches = {"PIP_CACHE_DIR": str(cache / "pip-cache"), "UV_CACHE_DIR": str(cache / "uv-cache")} if cache else {}
    return {
        "PATH": os.defpath,
        "HOME": str(home),
        "TMPDIR": str(home),
        "LC_ALL": "C.UTF-8",
        "PIP_CONFIG_FILE": os.devnull,
        **caches,
        **variables,
    }


def _run(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command; the end of what it said if it failed, else nothing."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        process_group=0,
        umask=0o022,
    ) as process:
        try:
            out, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"not finished after {SECONDS:.0f} s"
        except BaseException:
            process.kill()
            raise
    lines = [line.strip() for line in out.decode("utf-8", "replace").splitlines() if line.strip()]
    return "" if process.returncode == 0 else " | ".join(lines[-6:])[-900:] or f"exit code {process.returncode}"
