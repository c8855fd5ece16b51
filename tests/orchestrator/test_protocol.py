"""Requests and replies of the engine protocol."""

from __future__ import annotations

import resource
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol import (
    MAX_REQUEST,
    BadRequest,
    EngineUsage,
    Request,
    Turn,
    parse_request,
    parse_usage,
    sampling_seed,
    write_error,
    write_request,
    write_usage,
)
from orchestrator.replies import ReplyReader

USAGE = b'<usage prompt="3" completion="2" finish="stop"/>\x04'
xml_text = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"))


def test_the_three_requests() -> None:
    assert parse_request(b"<token_limit/>") == Request("token_limit")
    count = parse_request(b"<token_count><schema>/x</schema><system>s</system><context>c</context></token_count>")
    assert count == Request("token_count", system="s", schema="/x", context="c")
    turns = (
        b'<infer_xml><system/><turn role="user">a</turn><turn role="assistant">b</turn><prefix>p</prefix></infer_xml>'
    )
    assert parse_request(turns).turns == (Turn("user", "a"), Turn("assistant", "b"))
    assert parse_request(b"\xef\xbb\xbf<?xml version='1.0'?>\n" + turns).prefix == "p"
    cdata = b"<infer_xml><system>a<![CDATA[<b>]]>c<!-- no -->d</system><context/></infer_xml>"
    assert parse_request(cdata).system == "a<b>cd"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"", "expected one document"),
        (b"hello", "expected one document"),
        (b"<infer_xmlx/>", "expected one document"),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]><token_limit/>", "without a DOCTYPE"),
        (b"<infer_xml>", "not well-formed"),
        (b"<token_limit/><token_limit/>", "not well-formed"),
        (b"<infer_xml><system>\xff</system></infer_xml>", "not well-formed"),
        (b"<infer_xml><system>&bomb;</system><context/></infer_xml>", "not well-formed"),
        (b"<infer_xml><system>\x00</system></infer_xml>", "not well-formed"),
        (b"<infer_xml><context/></infer_xml>", "<system> is missing"),
        (b"<infer_xml><system/></infer_xml>", "neither <context> nor <turn>"),
        (b"<infer_xml><system/><context><context/></context></infer_xml>", "<context> takes text"),
        (b"<infer_xml><system/><context/><context/></infer_xml>", "<context> is given twice"),
        (b"<infer_xml><system/><context/><turn role='user'/></infer_xml>", "not both"),
        (b"<infer_xml><system/><turn role='system'/></infer_xml>", 'role="user"'),
        (b"<infer_xml><system/><context/><x/></infer_xml>", "unexpected element <x>"),
        (b"<infer_xml seed='-1'><system/><context/></infer_xml>", "is not a whole number"),
        (b"<token_limit/>" + b" " * MAX_REQUEST, "at most 16777216"),
    ],
)
def test_bad_requests(document: bytes, said: str) -> None:
    with pytest.raises(BadRequest) as raised:
        parse_request(document)
    assert said in str(raised.value)


@given(xml_text, xml_text, xml_text, st.booleans())
def test_written_requests_are_read_back(system: str, context: str, prefix: str, as_turns: bool) -> None:
    request = Request(
        "infer_xml",
        system=system,
        context=None if as_turns else context,
        turns=(Turn("user", context), Turn("assistant", "\r\n\t")) if as_turns else (),
        prefix=prefix,
        seed=7,
        max_tokens=9,
    )
    wire = write_request(request)
    assert wire.endswith(b"\x04") and wire.count(b"\x04") == 1
    assert parse_request(wire[:-1]) == request


@given(xml_text)
def test_no_request_crashes_the_parser(text: str) -> None:
    for start in ("", "<infer_xml>", "<token_count ", "<token_limit/>"):
        try:
            parse_request(f"{start}{text}".encode())
        except BadRequest:
            pass


def test_usage_keeps_unknown_apart_from_zero() -> None:
    usage = EngineUsage(prompt=3, completion=0, cost=None, finish="length")
    assert parse_usage(write_usage(usage)[:-1]) == usage
    odd = parse_usage(b"<usage prompt='-3' completion='x' cached='99999999999999' cost='nan' finish='&lt;b>'/>")
    assert odd == EngineUsage(None, None, None, None, "b")
    assert parse_usage(b"<usage cost='-1'/>").cost is None
    with pytest.raises(BadRequest):
        parse_usage(b"<usage")


def test_why_an_answer_is_unguided_is_one_clean_line() -> None:
    said = EngineUsage(prompt=3, unguided='type "a" <b> & c')
    assert parse_usage(write_usage(said)[:-1]) == said
    assert parse_usage(b"<usage unguided=''/>").unguided is None
    for hostile in (
        "\x1b[2Jred\nunguided: no",
        "a\x04b\x15c",
        "\ud800\uffff\x00",
        'x&<"' * 1000,
        "\U000e0041\u202e" * 9,
    ):
        wire = write_usage(EngineUsage(unguided=hostile))
        assert wire.count(b"\x04") == 1 and len(wire) < 4096
        read_back = parse_usage(wire[:-1]).unguided or ""
        assert len(read_back) <= 200 and read_back.isprintable()
    read_back = parse_usage(b"<usage unguided='a&#10;&#x202e;b" + b"c" * 900 + b"'/>").unguided or ""
    assert read_back.startswith("a bccc") and len(read_back) == 200


def test_seeds_differ_by_everything_and_by_nothing_else() -> None:
    seeds = {
        sampling_seed(*arguments)(ordinal)
        for arguments in ((1, "t", 1, "a"), (2, "t", 1, "a"), (1, "u", 1, "a"), (1, "t", 2, "a"), (1, "t", 1, "b"))
        for ordinal in (1, 2, 3)
    }
    assert len(seeds) == 15
    assert sampling_seed(1, "t", 1, "a")(3) == sampling_seed(1, "t", 1, "a")(3)
    assert all(0 <= seed < 2**31 for seed in seeds)


def read(data: bytes, cuts: list[int]) -> tuple[str, ReplyReader]:
    reader, out, at = ReplyReader(), "", 0
    for cut in [*sorted(cuts), len(data)]:
        out += reader.feed(data[at : max(at, cut)])
        at = max(at, cut)
    return out, reader


@pytest.mark.parametrize(
    ("data", "text", "error"),
    [
        (b"<stop/>\x04" + USAGE, "<stop/>", None),
        (b"\x04" + USAGE, "", None),
        ("é漢\U0001f600".encode() + b"\x04" + USAGE, "é漢\U0001f600", None),
        (b"a\x04b\x04" + USAGE, "a\ufffdb", None),
        (b"a\x04<us\x04<usag\x04" + USAGE, "a\ufffd<us\ufffd<usag", None),
        (b"a\x15b\x15engines x\x04" + USAGE, "a\ufffdb\ufffdengines x", None),
        (b"a\x15too_long so many\x04" + USAGE, "a", ("too_long", "so many")),
        (b"\x15engine\x04" + USAGE, "", ("engine", "")),
        (b"a\xe6\xbc\x04" + USAGE, "a\ufffd", None),
        (b"\xff\x00\x1b\x04<usage nonsense\x04", "\ufffd\x00\x1b", None),
    ],
)
def test_replies(data: bytes, text: str, error: tuple[str, str] | None) -> None:
    for cuts in ([], [1], list(range(len(data)))):
        out, reader = read(data, cuts)
        assert (out, reader.error, reader.done, reader.left_over) == (text, error, True, False)


@given(st.text(), st.lists(st.integers(0, 400), max_size=12))
def test_any_text_cut_anywhere_arrives_as_one_reply(text: str, cuts: list[int]) -> None:
    sent = text.encode("utf-8", "replace").replace(b"\x04<usage", b"")
    data = sent + b"\x04" + USAGE
    whole, one = read(data, [])
    out, reader = read(data, [min(cut, len(data)) for cut in cuts])
    assert out == whole and reader.done and one.done
    assert "\x04" not in out and "\x15" not in out
    if "\x15" not in text:
        assert out == sent.decode().replace("\x04", "\ufffd")
        assert reader.usage == EngineUsage(3, 2)


def test_error_lines_stay_one_frame() -> None:
    assert write_error("engine", "a\x04b\x15c\n d\ud800") == "\x15engine a\ufffdb\ufffdc d?\x04".encode()


BOMBS = {
    "elements in text": b"<infer_xml><context>" + b"<a/>" * 4_000_000 + b"</context></infer_xml>",
    "siblings": b"<infer_xml>" + b"<turn/>" * 2_000_000 + b"</infer_xml>",
    "depth": b"<infer_xml>" + b"<a>" * 2_000_000,
    "attributes": b"<infer_xml " + b" ".join(b'a%x=""' % n for n in range(200_000)) + b"/>",
}


@pytest.mark.bad_input
@pytest.mark.parametrize("bomb", BOMBS)
def test_bad_input_request_that_would_take_the_memory(bomb: str) -> None:
    """Of 16 MB there may be 4 million elements: the supervisor's memory must not follow an instance's wish."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadRequest) as refused:
        parse_request(BOMBS[bomb])
    print(refused.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_large_and_small_requests_are_read_alike() -> None:
    for size in (10, 2_000_000):
        text = "a<b>&\r]]>" + "x" * size
        request = Request("infer_xml", "s&", "schema", text, prefix="<a>", seed=3, max_tokens=4)
        assert parse_request(write_request(request)[:-1]) == request
        turns = replace(request, context=None, turns=(Turn("user", text), Turn("assistant", "")))
        assert parse_request(write_request(turns)[:-1]) == turns
        with pytest.raises(BadRequest, match="<system> takes text"):
            parse_request(b"<infer_xml><system>" + b"x" * size + b"<b/></system></infer_xml>")
