"""Policy files: read strictly; every fault names the file, the place and the fix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.engines.scripted.expressions import Expression, Let, Pick, Template, Values, Wrong, as_truth
from orchestrator.engines.scripted.faults import LINE_FAULTS, SETTINGS, TEXT_FAULTS, Faults, draw
from orchestrator.errors import ConfigError
from orchestrator.toml_file import read_toml, unknown_key, wrong_value

FIX = "see the policy format: python -c 'import orchestrator.engines.scripted as s; help(s)'"


@dataclass(frozen=True)
class Rule:
    """One rule; `key` is its place in the file, `2` or `2.1`."""

    key: str
    when: Expression | None
    rate: float
    answers: tuple[Template, ...]
    faults: Faults
    rules: tuple[Rule, ...]

    def choose(self, values: Values, seed: int) -> Choice | None:
        """This rule's answer, or one of its nested rules', if it applies."""
        if self.when is not None and not as_truth(self.when.evaluate(values)):
            return None
        if self.rate < 1 and draw(seed, self.key, "rate") >= self.rate:
            return None
        for rule in self.rules:
            if choice := rule.choose(values, seed):
                return choice
        if not self.answers:
            return None
        picked = int(draw(seed, self.key, "answer") * len(self.answers)) if len(self.answers) > 1 else 0
        return Choice(self, self.answers[picked])


@dataclass(frozen=True)
class Choice:
    """The rule that applies, and which of its answers."""

    rule: Rule
    answer: Template


@dataclass(frozen=True)
class Policy:
    """A whole policy file, compiled."""

    rules: tuple[Rule, ...]
    faults: Faults
    chunk: int
    delay: float  # seconds
    split_utf8: bool
    limit: int
    chars_per_token: float
    cost_per_1k: float | None


def load(path: Path) -> Policy:
    """The compiled policy. Raises ConfigError that names each place."""
    return compile_policy(read_toml(path), str(path))


def compile_policy(values: Mapping[str, Any], where: str = "policy") -> Policy:
    """A policy from its TOML values."""
    try:
        top = _Table(values, "", ("rule", "let", "faults", "stream", "tokens", "usage"))
        faults = _faults(top.table("faults", (*TEXT_FAULTS, *LINE_FAULTS, *SETTINGS)), None)
        stream = top.table("stream", ("chunk", "delay_ms", "split_utf8"))
        tokens = top.table("tokens", ("limit", "chars_per_token"))
        usage = top.table("usage", ("cost_per_1k",))
        scope = _lets(top.raw("let", dict, {}), {}, "let")
        rules = _rules(top.raw("rule", list, []), scope, faults, "")
        if not rules:
            raise Wrong("there is no [[rule]]")
        return Policy(
            rules=rules,
            faults=faults,
            chunk=int(stream.number("chunk", 4096, whole=True)),
            delay=stream.number("delay_ms", 0) / 1000,
            split_utf8=stream.raw("split_utf8", bool, False),
            limit=int(tokens.number("limit", 32768, whole=True, least=1)),
            chars_per_token=tokens.number("chars_per_token", 4, least=0.1),
            cost_per_1k=usage.number("cost_per_1k", 0) if "cost_per_1k" in usage.values else None,
        )
    except Wrong as error:
        raise ConfigError(str(error), where=where, fix=FIX) from None


class _Table:
    """A TOML table that is read strictly."""

    def __init__(self, values: Any, place: str, known: tuple[str, ...]) -> None:
        self.values, self.place = values, place
        if not isinstance(values, dict):
            raise Wrong(f"{place}: a table is expected")
        for name in values:
            if name not in known:
                raise Wrong(unknown_key(self._at(name), known))

    def _at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def raw(self, name: str, kind: type, default: Any) -> Any:
        value = self.values.get(name, default)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise Wrong(wrong_value(self._at(name), f"{kind.__name__} is expected", value))
        return value

    def table(self, name: str, known: tuple[str, ...]) -> _Table:
        return _Table(self.values.get(name, {}), self._at(name), known)

    def number(self, name: str, default: float, *, most: float = 1e9, least: float = 0.0, whole: bool = False) -> float:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise Wrong(wrong_value(self._at(name), f"a {'whole ' if whole else ''}number is expected", value))
        if not least <= value <= most:
            raise Wrong(f"{self._at(name)}: {value} is not between {least:g} and {most:g}")
        return float(value)


def _faults(table: _Table, base: Faults | None) -> Faults:
    rates = {
        name: table.number(name, base.rates[name] if base else 0.0, most=1.0) for name in TEXT_FAULTS + LINE_FAULTS
    }
    stall = table.number("stall_sec", base.stall_sec if base else SETTINGS["stall_sec"])
    return Faults(rates, stall, table.number("flood_mb", base.flood_mb if base else SETTINGS["flood_mb"]))


def _lets(values: Mapping[str, Any], outer: Mapping[str, Let], place: str) -> dict[str, Let]:
    scope = dict(outer)
    for name, value in values.items():
        at = f"{place}.{name}"
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise Wrong(f"{at}: a name has letters, digits and _ only")
        try:
            scope[name] = _let(value, scope, at)
        except Wrong as error:
            raise Wrong(str(error) if str(error).startswith(at) else f"{at}: {error}") from None
    return scope


def _let(value: Any, scope: Mapping[str, Let], at: str) -> Let:
    if isinstance(value, str):
        return Let(Expression(value, scope), None)
    table = _Table(value, at, ("from", "regex", "group", "which", "join", "default"))
    source = Expression(table.raw("from", str, "."), scope)
    if "regex" not in table.values:
        raise Wrong("a table needs `regex` (without one, write the XPath as a plain string)")
    try:
        pattern = re.compile(table.raw("regex", str, ""))
    except re.error as error:
        raise Wrong(f"regex: {error}") from None
    group = table.values.get("group", 1 if pattern.groups else 0)
    if isinstance(group, bool) or not (group in pattern.groupindex or group in range(pattern.groups + 1)):
        raise Wrong(f"group {group!r}: the pattern has no such group")
    which = table.raw("which", str, "first")
    if which not in ("first", "last", "all"):
        raise Wrong(f"which = {which!r}: first, last or all")
    return Let(source, Pick(pattern, group, which, table.raw("join", str, "\n"), table.raw("default", str, "")))


def _rules(values: list[Any], outer: Mapping[str, Let], base: Faults, prefix: str) -> tuple[Rule, ...]:
    rules = []
    for number, value in enumerate(values, 1):
        key = f"{prefix}{number}"
        name = value.get("name") if isinstance(value, dict) else None
        try:
            rules.append(_rule(value, outer, base, key))
        except Wrong as error:
            label = f"rule {key}" + (f" ({name})" if isinstance(name, str) else "")
            raise Wrong(str(error) if str(error).startswith("rule ") else f"{label}: {error}") from None
    return tuple(rules)


def _rule(value: Any, outer: Mapping[str, Let], base: Faults, key: str) -> Rule:
    table = _Table(value, "", ("name", "when", "answer", "rate", "let", "faults", "rule"))
    table.raw("name", str, "")
    scope = _lets(table.raw("let", dict, {}), outer, "let")
    faults = _faults(table.table("faults", (*TEXT_FAULTS, *LINE_FAULTS, *SETTINGS)), base)
    answer = value.get("answer", [])
    answers = [answer] if isinstance(answer, str) else answer
    if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
        raise Wrong("answer: a text or a list of texts is expected")
    nested = _rules(table.raw("rule", list, []), scope, faults, f"{key}.")
    if not answers and not nested:
        raise Wrong("neither an answer nor nested rules")
    return Rule(
        key=key,
        when=Expression(table.raw("when", str, ""), scope) if "when" in value else None,
        rate=table.number("rate", 1.0, most=1.0),
        answers=tuple(Template(one, scope) for one in answers),
        faults=faults,
        rules=nested,
    )
