"""Policy files: every fault is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.engines.scripted.policy import compile_policy, load
from orchestrator.errors import ConfigError

RULE = {"answer": "<stop/>"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "there is no [[rule]]"),
        ({"rule": [RULE], "rules": []}, "rules: unknown key (known: rule, let"),
        ({"rule": [{**RULE, "wen": "true()"}]}, "rule 1: wen: unknown key"),
        ({"rule": [RULE, {"name": "x", "answer": 3}]}, "rule 2 (x): answer: a text or a list of texts"),
        ({"rule": [{}]}, "rule 1: neither an answer nor nested rules"),
        ({"rule": [{**RULE, "when": "single["}]}, "rule 1: 'single[' is not valid XPath"),
        ({"rule": [{**RULE, "when": "unknown()"}]}, "rule 1: 'unknown()' is not valid XPath"),
        ({"rule": [{**RULE, "when": "$nothing = 1"}]}, "rule 1: $nothing is not defined here (known: $system"),
        ({"rule": [{"answer": "a {b}"}]}, "rule 1: {b} names no let (known: none)"),
        ({"rule": [{"answer": "a { b"}]}, "rule 1: single '{' near 'a { b': write {{"),
        ({"rule": [{"answer": "{x:html}", "let": {"x": "'1'"}}]}, "rule 1: {x:html}: unknown format (known: cdata"),
        ({"rule": [{**RULE, "let": {"x": {"from": ".", "regex": "("}}}]}, "rule 1: let.x: regex:"),
        (
            {"rule": [{**RULE, "let": {"x": {"regex": "a", "group": 1}}}]},
            "let.x: group 1: the pattern has no such group",
        ),
        ({"rule": [{**RULE, "let": {"x": {"regex": "a", "which": "any"}}}]}, "which = 'any': first, last or all"),
        ({"rule": [{**RULE, "let": {"x": {"from": "."}}}]}, "let.x: a table needs `regex`"),
        ({"rule": [{**RULE, "let": {"x y": "."}}]}, "let.x y: a name has letters"),
        ({"rule": [{**RULE, "faults": {"fences": 2}}]}, "rule 1: faults.fences: 2 is not between 0 and 1"),
        ({"rule": [{**RULE, "faults": {"fence": 0.1}}]}, "rule 1: faults.fence: unknown key"),
        ({"rule": [{**RULE, "rate": True}]}, "rule 1: rate: a number is expected"),
        ({"rule": [{"when": "a", "rule": [RULE, {"answer": "{q}"}]}]}, "rule 1.2: {q} names no let"),
        ({"rule": [RULE], "stream": {"chunk": 1.5}}, "stream.chunk: a whole number is expected"),
        ({"rule": [RULE], "tokens": {"limit": 0}}, "tokens.limit: 0 is not between 1"),
        ({"rule": [RULE], "let": {"x": "]"}}, "let.x: ']' is not valid XPath"),
        ({"rule": "x"}, "rule: list is expected"),
        ({"rule": ["x"]}, "rule 1: : a table is expected"),
    ],
)
def test_faults_are_named(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compile_policy(values, "policy.toml")
    assert raised.value.where == "policy.toml"
    assert said in raised.value.what, raised.value.what


@pytest.mark.bad_input
@pytest.mark.parametrize("content", [None, b"[[rule]\n", b"\xff\xfe", b"[[rule]]\nanswer = '<stop/>'\nrates = 1\n"])
def test_bad_input_policy_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "policy.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        load(path)
    print(raised.value.render())
    assert raised.value.where == str(path)
    assert raised.value.fix
