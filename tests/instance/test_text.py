"""Text of unknown origin, fit for XML and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from instance.text import attribute, cut, decode, embed, original, shown_size, visible, wrap

ANY_TEXT = st.text(alphabet=st.characters() | st.characters(categories=["Cs"]) | st.sampled_from("‹›U+01\r\x00]>&<"))


@given(ANY_TEXT)
@pytest.mark.spec("13")
def test_visible_is_reversible(text: str) -> None:
    assert original(visible(text)) == text and shown_size(text) == len(visible(text))


@given(ANY_TEXT)
@pytest.mark.spec("9")
@pytest.mark.spec("13")
def test_visible_text_survives_xml_exactly(text: str) -> None:
    shown = visible(text)
    assert (etree.fromstring(f"<a>{wrap(shown)}</a>").text or "") == shown
    assert etree.fromstring(f'<a b="{attribute(shown)}"/>').get("b") == shown


@given(st.binary())
def test_bytes_come_back(data: bytes) -> None:
    assert original(visible(decode(data))).encode("utf-8", "surrogateescape") == data


@given(ANY_TEXT)
def test_a_document_can_be_embedded(text: str) -> None:
    document = f"<x>{wrap(visible(text))}</x>"
    assert etree.fromstring(f"<a>{embed(document)}</a>").text == document


def test_escapes_are_visible() -> None:
    assert visible("a\x1b[0m\r\n") == "a‹U+001B›[0m‹U+000D›\n"
    assert visible("‹quoted›") == "‹quoted›"
    assert visible("‹U+001B›") == "‹U+2039›U+001B›"


@pytest.mark.spec("9")
def test_cdata_unless_the_text_closes_one() -> None:
    assert wrap("a < b") == "<![CDATA[a < b]]>"
    assert wrap("a ]]> b") == "a ]]&gt; b"
    assert wrap("") == ""


@pytest.mark.parametrize(("limit", "expected"), [(10, "abcdefghij"), (4, "ab\n[… 6 characters left out …]\nij")])
def test_cut_names_what_is_missing(limit: int, expected: str) -> None:
    assert cut("abcdefghij", limit) == expected


@given(st.text(alphabet="\x00ab‹U+0›", max_size=20), st.integers(0, 60))
def test_cut_splits_no_escape(text: str, limit: int) -> None:
    shown = visible(text)
    head, _, tail = cut(shown, limit).partition("\n[… ")
    if len(shown) <= limit:
        assert head == shown
        return
    left_out, _, tail = tail.partition(" characters left out …]\n")
    assert shown.startswith(head) and shown.endswith(tail) and len(head) + len(tail) + int(left_out) == len(shown)
    assert text.startswith(original(head)) and text.endswith(original(tail)), "no piece of an escape stands alone"
    assert limit - 14 <= len(head) + len(tail) <= limit


def test_cut_to_nothing() -> None:
    assert cut("abc", 0) == "\n[… 3 characters left out …]\n"
