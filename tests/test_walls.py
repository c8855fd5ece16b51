"""The walls between the rooms (docs/architecture.md): who may import whom, and how large a room may grow."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("sandbox", "instance", "orchestrator", "tools", "benchmarks")
FORBIDDEN = {
    "sandbox": {"instance", "orchestrator", "tools", "benchmarks"},
    "instance": {"sandbox", "orchestrator", "benchmarks"},
    "tools": {"sandbox", "orchestrator", "benchmarks"},
    "orchestrator": {"instance", "tools", "benchmarks"},
}
# What would make every start of the agent slow (benchmarks/agent.py)
HEAVY_IN_AGENT = {"pydantic", "xmlschema", "scipy", "numpy", "rich", "textual", "cyclopts", "asyncio", "git"}


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Top-level names that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_imports_only_what_it_may_know(room: str) -> None:
    assert sources(room), f"{room}/ has no source files: the check would prove nothing"
    crossings = {str(path): imported(path) & FORBIDDEN[room] for path in sources(room)}
    assert not {path: names for path, names in crossings.items() if names}


def test_the_agent_imports_nothing_heavy() -> None:
    crossings = {str(path): imported(path) & HEAVY_IN_AGENT for path in sources("instance")}
    assert not {path: names for path, names in crossings.items() if names}


def test_the_wall_check_sees_a_crossing(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("def f() -> None:\n    from orchestrator.broker import Line\n", encoding="utf-8")
    assert imported(planted) & FORBIDDEN["instance"] == {"orchestrator"}


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_outgrows_its_room(room: str) -> None:
    sizes = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in sources(room)}
    assert not {path: lines for path, lines in sizes.items() if lines > 500}


@pytest.mark.parametrize("room", ROOMS)
def test_functions_fit_a_screen(room: str) -> None:
    long = []
    for path in sources(room):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.end_lineno and node.end_lineno - node.lineno > 70:
                long.append(f"{path}:{node.lineno} {node.name}")
    assert not long
