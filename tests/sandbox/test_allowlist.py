"""Entries of an allow-list, and which addresses a name may lead to."""

from __future__ import annotations

import pytest

from sandbox.allowlist import AllowList, is_public, normal_host, split
from sandbox.errors import CannotIsolate


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("Example.org:443", "example.org", 443),
        ("example.org.:443", "example.org", 443),
        ("10.0.0.5:8080", "10.0.0.5", 8080),
        ("[::1]:80", "::1", 80),
        ("[0:0:0:0:0:0:0:1]:80", "::1", 80),
        ("[::ffff:127.0.0.1]:80", "127.0.0.1", 80),
        ("a_b.internal:1", "a_b.internal", 1),
    ],
)
def test_one_canonical_form(text: str, host: str, port: int) -> None:
    assert split(text) == (host, port)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "entry",
    ["", "example.org", "example.org:", "example.org:0", "example.org:65536", "example.org:https", "*.example.org:443",
     "*:443", "https://example.org:443", "example.org:443/simple", "::1:80", "[fe80::1%eth0]:80", "127.1:80",
     "0x7f000001:80", "2130706433:80", "1.2.3.4.5:80", "0177.0.0.1:80", "a b:80", "a\n:80", "-a:80",
     "ü.org:80", "user@host:80", "example.org:4\u0664", f"{'a' * 64}.org:80", f"{'a.' * 130}org:80", "a..b:80"],
)  # fmt: skip
def test_bad_input_allow_list_entry(entry: str) -> None:
    with pytest.raises(CannotIsolate) as caught:
        AllowList((entry,))
    print(caught.value.render())
    assert repr(entry) in str(caught.value) and "host:port" in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "255.255.255.255", "192.0.2.1", "240.0.0.1", "::1", "::", "fe80::1", "fe80::1%2", "fc00::1", "fec0::1", "ff02::1",
     "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "2002:a00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
     "64:ff9b:1::7f00:1", "::7f00:1", "2001:0:7f00:1::", "2001:db8::1", "nonsense", ""],
)  # fmt: skip
def test_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_public(address: str) -> None:
    assert is_public(address)


def test_names_match_names_and_addresses_match_addresses() -> None:
    allowed = AllowList(("good.test:80", "10.0.0.5:80"))
    assert not allowed.refusal("good.test", 80) and not allowed.refusal("10.0.0.5", 80)
    for host, port in (("good.test", 81), ("www.good.test", 80), ("good.test.evil", 80), ("10.0.0.6", 80)):
        assert f"{host}:{port} is not in the allow-list (good.test:80, 10.0.0.5:80)" in allowed.refusal(host, port)


def test_a_name_may_lead_to_a_private_address_only_if_that_is_an_entry_itself() -> None:
    allowed = AllowList(("good.test:80", "10.0.0.5:80", "127.0.0.1:81"))
    assert not allowed.address_refusal("good.test", 80, "8.8.8.8")
    assert not allowed.address_refusal("good.test", 80, "10.0.0.5")
    assert not allowed.address_refusal("10.0.0.5", 80, "10.0.0.5")
    for address in ("10.0.0.6", "127.0.0.1", "::ffff:127.0.0.1", "fe80::1%2", "169.254.169.254"):
        assert "not public" in allowed.address_refusal("good.test", 80, address)


def test_hosts_are_written_out() -> None:
    with pytest.raises(ValueError, match="neither"):
        normal_host("[127.0.0.1")
