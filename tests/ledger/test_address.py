"""Addresses of stores: what is read, what is shown, what is refused."""

import pytest

from router.ledger.address import Address, Kind, parse_address

SECRET = "s3cr3t-w0rd"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://cache", Address(Kind.SINGLE, False, (("cache", 6379),))),
        ("redis://cache:6380/3", Address(Kind.SINGLE, False, (("cache", 6380),), database=3)),
        ("valkey://cache:6380", Address(Kind.SINGLE, False, (("cache", 6380),))),
        ("rediss://app@[::1]:6380", Address(Kind.SINGLE, True, (("::1", 6380),), "app")),
        ("valkeys://10.0.0.1", Address(Kind.SINGLE, True, (("10.0.0.1", 6379),))),
        (f"redis://:{SECRET}@cache", Address(Kind.SINGLE, False, (("cache", 6379),), "", SECRET)),
        ("redis://app:p%40%2Fw@cache", Address(Kind.SINGLE, False, (("cache", 6379),), "app", "p@/w")),
        ("redis+cluster://a:1,b,c:3", Address(Kind.CLUSTER, False, (("a", 1), ("b", 6379), ("c", 3)))),
        (
            "rediss+sentinel://app@a,b:5/main",
            Address(Kind.SENTINEL, True, (("a", 26379), ("b", 5)), "app", primary="main"),
        ),
    ],
)
def test_what_is_read(text: str, expected: Address) -> None:
    address = parse_address(text)
    assert {name: getattr(address, name) for name in Address.__slots__} == {
        name: getattr(expected, name) for name in Address.__slots__
    }
    assert SECRET not in str(address) + repr(address) + f"{address}"


@pytest.mark.parametrize(
    "text",
    [
        "redis://app@cache:6379/3",
        "rediss+cluster://app@a:1,b:2",
        "redis+sentinel://a:26379/main",
        "redis://[::1]:6379",
    ],
)
def test_what_is_shown_can_be_read(text: str) -> None:
    assert str(parse_address(text)) == text.replace("/0", "")
    assert parse_address(str(parse_address(text))) == parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "memcached://cache",
        "redis:cache",
        f"redis://:{SECRET}@",
        f"redis://:{SECRET}@cache:0",
        f"redis://:{SECRET}@cache:65536",
        f"redis://:{SECRET}@cache/one",
        f"redis://:{SECRET}@cache?db=1",
        f"redis://:{SECRET}@a,b",
        f"redis://:{SECRET}@a b",
        f"redis+cluster://:{SECRET}@a/1",
        f"redis+sentinel://:{SECRET}@a",
        f"redis+other://:{SECRET}@a",
    ],
)
def test_what_is_refused_is_not_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        parse_address(text)
    assert SECRET not in str(refused.value)
