"""The scripted model: rules, lets, templates, faults, streams."""

from __future__ import annotations

import time
from typing import Any

import pytest

from orchestrator.engines.scripted.faults import LINE_FAULTS, TEXT_FAULTS, draw, spoil
from orchestrator.engines.scripted.model import NO_RULE, ScriptedModel, document
from orchestrator.engines.scripted.policy import compile_policy
from orchestrator.engines.serve import EngineError, Hangup, Line
from orchestrator.protocol import EngineUsage, Request, Turn


def ask(
    rules: list[dict[str, Any]],
    context: str | None = "<context/>",
    *,
    seed: int | None = 1,
    line: Line | None = None,
    top: dict[str, Any] | None = None,
    **request: Any,
) -> tuple[str, EngineUsage]:
    model = ScriptedModel(compile_policy({"rule": rules, **(top or {})}))
    wanted = Request("infer_xml", **{"system": "sys", "context": context, "seed": seed, "max_tokens": 1000, **request})
    pieces = model.infer(wanted, line or Line(closed=lambda: False))
    got = b""
    while True:
        try:
            got += next(pieces)
        except StopIteration as end:
            return got.decode(), end.value


def answer(rules: list[dict[str, Any]], context: str = "<context/>", **options: Any) -> str:
    return ask(rules, context, **options)[0]


def test_the_first_rule_that_applies_answers() -> None:
    rules = [
        {"when": "not(read_stdin) and @stdin > 0", "answer": "<read_stdin/>"},
        {"when": "single[@exit_code != 0]", "answer": "<reasoning>it failed</reasoning>"},
        {"answer": "<stop/>"},
    ]
    assert answer(rules, '<context stdin="3"/>') == "<read_stdin/>"
    assert answer(rules, '<context stdin="0"><single id="a" exit_code="2">x</single></context>').endswith(
        "failed</reasoning>"
    )
    assert answer(rules, '<context stdin="0"/>') == "<stop/>"
    assert answer(rules[:1]) == NO_RULE


def test_lets_reach_the_condition_the_answer_and_nested_rules() -> None:
    rules = [
        {
            "when": "$file",
            "let": {"file": {"from": "$message", "regex": r"file (\S+)"}, "name": "concat($file, '!')"},
            "rule": [
                {"when": "$never = 'x'", "let": {"never": "'y'"}, "answer": "no"},
                {"answer": "<single>{name}</single>"},
            ],
        },
        {"answer": "<stop/>"},
    ]
    top = {"let": {"message": "read_stdin[last()]"}}
    context = "<context><read_stdin id='1'>see file a&amp;b.txt</read_stdin></context>"
    assert answer(rules, context, top=top) == "<single>a&amp;b.txt!</single>"
    assert answer(rules, "<context/>", top=top) == "<stop/>"


@pytest.mark.parametrize(
    ("placeholder", "shown"),
    [
        ("{x}", "it's ]]&gt; &lt;&quot;&amp;"),
        ("{x:cdata}", "it's ]]]]><![CDATA[> <\"&"),
        ("{x:sh}", "'it'&quot;'&quot;'s ]]&gt; &lt;&quot;&amp;'"),
        ("{x:raw}", "it's ]]> <\"&"),
        ("{{x}}", "{x}"),
    ],
)
def test_placeholders(placeholder: str, shown: str) -> None:
    context = "<context>it's ]]&gt; &lt;\"&amp;</context>"
    assert answer([{"answer": placeholder, "let": {"x": "."}}], context) == shown


@pytest.mark.parametrize(
    ("let", "value"),
    [
        ("count(single)", "2"),
        ("single[1]/@id", "a"),
        ("boolean(single)", "true"),
        ("single[9]", ""),
        ("1 div 2", "0.5"),
        ("re:replace(string(single[1]), 'o', 'g', '0')", "0ne"),
        ({"from": ".", "regex": "o.e|t.o", "which": "all", "join": "+"}, "one+two"),
        ({"from": ".", "regex": "[a-z]+", "which": "last"}, "two"),
        ({"from": ".", "regex": "(?P<w>t)(wo)", "group": "w"}, "t"),
        ({"from": ".", "regex": "zzz", "default": "none"}, "none"),
        ("$system", "sys"),
        ("$seed + 1", "2"),
    ],
)
def test_let_values(let: Any, value: str) -> None:
    context = "<context><single id='a'>one</single> <single id='b'>two</single></context>"
    assert answer([{"answer": "{v}", "let": {"v": let}}], context) == value


def test_a_context_that_is_not_well_formed_is_read_as_far_as_it_goes() -> None:
    rules = [{"when": "$malformed != '' and single", "answer": "{m:raw}", "let": {"m": "single"}}]
    assert answer(rules, "<context><single id='1'>a</single><broken></context>") == "a"
    assert answer([{"when": "$malformed = ''", "answer": "x"}, {"answer": "y"}], "no xml at all") == "y"
    assert answer([{"answer": "x"}], "") == "x"


def test_a_doctype_in_the_context_expands_nothing() -> None:
    bomb = '<!DOCTYPE c [<!ENTITY a "AAAA"><!ENTITY b "&a;&a;">]><context>&b;</context>'
    assert "AAAA" not in answer([{"answer": "[{t}]", "let": {"t": "."}}], bomb)


def test_turns_become_one_document() -> None:
    turns = (
        Turn("user", '<context time="1" stdin="0"><single id="a">one</single></context>'),
        Turn("assistant", "<stop/>"),
        Turn("user", '<single id="b">two</single><single id="c">three</single>'),
        Turn("user", "plain & simple"),
        Turn("user", '<context time="2"/>'),
    )
    root, malformed = document(Request("infer_xml", turns=turns))
    assert [child.get("id") for child in root.iter("single")] == ["a", "b", "c"]
    assert (root.get("time"), root.get("stdin"), malformed) == ("2", "0", "")
    assert root.findtext("turn") == "plain & simple"


def test_the_same_request_and_seed_give_the_same_answer() -> None:
    rules = [{"answer": ["<a/>", "<b/>", "<c/>"], "faults": {"fences": 0.5, "prose": 0.5}}]
    answers = [answer(rules, seed=seed) for seed in range(60)]
    assert answers == [answer(rules, seed=seed) for seed in range(60)]
    assert len(set(answers)) == 12  # every answer, with every mixture of the two faults


def test_rates_hold_and_are_independent() -> None:
    happened = sum(draw(seed, "1", "fences") < 0.2 for seed in range(5000))
    assert 900 < happened < 1100
    rules = [{"answer": "<a/>", "rate": 0.3}, {"answer": "<b/>"}]
    assert 40 < sum(answer(rules, seed=seed) == "<a/>" for seed in range(200)) < 80


def test_text_faults() -> None:
    action = '<delete id="abc">x</delete>'
    spoilt = {name: spoil(action, frozenset([name])) for name in TEXT_FAULTS}
    assert spoilt["wrong_id"] == '<delete id="ab0">x</delete>'
    assert spoilt["two_actions"].startswith("<reasoning>") and spoilt["two_actions"].endswith(action)
    assert spoilt["unclosed"] == '<delete id="abc">x'
    assert action.startswith(spoilt["truncated"]) and len(spoilt["truncated"]) < len(action)
    assert spoilt["fences"] == f"```xml\n{action}\n```"
    assert "\x00" in spoilt["garbage"] and "\ufffe" in spoilt["garbage"]
    assert spoil("<stop/>", frozenset(["unclosed"])) == "<stop"
    for name in (*TEXT_FAULTS, *LINE_FAULTS):
        compile_policy({"rule": [{"answer": "x", "faults": {name: 1}}]})


def test_stall_waits_and_silence_lasts_until_the_line_is_closed() -> None:
    begun = time.monotonic()
    answer([{"answer": "x", "faults": {"stall": 1, "stall_sec": 0.2}}])
    assert time.monotonic() - begun >= 0.2
    with pytest.raises(Hangup):
        ask([{"answer": "x", "faults": {"silence": 1}}], line=Line(closed=lambda: time.monotonic() > begun + 0.5))
    with pytest.raises(Hangup):
        ask([{"answer": "x", "faults": {"drop": 1}}])


def test_usage_limits_and_prefix() -> None:
    top = {"tokens": {"limit": 100, "chars_per_token": 2}, "usage": {"cost_per_1k": 10.0}}
    text, usage = ask([{"answer": "<a>éü</a>"}], "<context/>", top=top, prefix="<a>")
    assert text == "éü</a>"
    assert (usage.prompt, usage.completion, usage.finish) == (8, 3, "stop")
    assert usage.cost == pytest.approx(0.11)
    assert ask([{"answer": "x"}])[1].cost is None
    with pytest.raises(EngineError, match="the limit is 100"):
        ask([{"answer": "x"}], "y" * 300, top=top)
    text, usage = ask([{"answer": "0123456789"}], max_tokens=2)
    assert (text, usage.finish) == ("01234567", "length")


def test_cached_tokens_count_the_common_beginning() -> None:
    line = Line(closed=lambda: False)
    assert ask([{"answer": "x"}], "<context>" + "a" * 400 + "</context>", line=line)[1].cached == 0
    assert ask([{"answer": "x"}], "<context>" + "a" * 400 + "b</context>", line=line)[1].cached == (3 + 9 + 400) // 4


def test_streams_are_cut_as_asked() -> None:
    def pieces(stream: dict[str, Any]) -> list[bytes]:
        model = ScriptedModel(compile_policy({"rule": [{"answer": "aéüb"}], "stream": stream}))
        request = Request("infer_xml", context="<context/>", seed=1)
        return list(model.infer(request, Line(closed=lambda: False)))

    assert pieces({"chunk": 2}) == ["aé".encode(), "ü".encode(), b"b"]
    assert pieces({"chunk": 0}) == ["aéüb".encode()]
    cut = pieces({"chunk": 3, "split_utf8": True})
    assert b"".join(cut) == "aéüb".encode()
    with pytest.raises(UnicodeDecodeError):
        cut[0].decode()


def test_framing_characters_never_leave_the_engine() -> None:
    assert answer([{"answer": "a\x04b\x15engine x"}]) == "a\ufffdb\ufffdengine x"


def test_without_a_seed_the_number_on_the_line_counts() -> None:
    rules = [{"answer": [str(number) for number in range(50)]}]
    line = Line(closed=lambda: False)
    got = []
    for _ in range(5):
        line.inferences += 1
        got.append(answer(rules, seed=None, line=line))
    assert len(set(got)) > 2
    assert got == [answer(rules, seed=number) for number in range(1, 6)]
