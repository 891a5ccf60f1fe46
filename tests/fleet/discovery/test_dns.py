"""Names whose addresses are nodes."""

import asyncio
import socket
from collections.abc import Sequence

import pytest

from router.fleet.discovery.dns import DnsName, system_addresses
from router.fleet.node import Role
from tests.fleet.discovery.listened import listening


class Script:
    """A resolver that answers what comes next, and then the last again."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, name: str, port: int) -> Sequence[str]:
        self.asked.append((name, port))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def named(script: Script) -> DnsName:
    return DnsName("dns://Engines:8000", Role.PREFILL, interval_s=0.001, resolve=script)


async def test_every_address_is_a_node_and_the_order_says_nothing() -> None:
    script = Script(["10.0.0.2", "10.0.0.1"], ["10.0.0.1", "10.0.0.2", "10.0.0.1"], ["10.0.0.3"])
    async with listening(named(script)) as heard:
        await heard.until_keys("p:10.0.0.3:8000")
    assert heard.told[:2] == [("p:10.0.0.1:8000", "p:10.0.0.2:8000")] * 2
    assert set(script.asked) == {("engines", 8000)}
    assert named(script).name == "prefill dns://engines:8000"


async def test_an_engine_with_addresses_of_two_families_is_one_node() -> None:
    async with listening(named(Script(["fd00::2", "fd00::1"], ["fd00::1", "10.0.0.1", "fd00::2"]))) as heard:
        await heard.until_keys("p:10.0.0.1:8000")
    assert heard.told[0] == ("p:[fd00::1]:8000", "p:[fd00::2]:8000")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            socket.gaierror(-3, "Temporary failure in name resolution"),
            "the look-up failed: Temporary failure",
        ),
        (socket.gaierror(-2, "Name or service not known"), "the look-up failed: Name or service not known"),
        (TimeoutError(), "no answer to a look-up within 5 s"),
        ([], "the name has no address"),
    ],
)
async def test_a_look_up_that_fails_is_told(answer: list[str] | Exception, why: str) -> None:
    async with listening(named(Script(answer, ["10.0.0.1"]))) as heard:
        await heard.until_keys("p:10.0.0.1:8000")
    assert heard.failures
    assert heard.failures[0].startswith(why)


async def test_the_systems_resolver() -> None:
    assert "127.0.0.1" in await system_addresses("localhost", 80)
    assert await system_addresses("::1", 80) == ["::1"]
    async with listening(DnsName("dns://127.0.0.1:9", Role.DECODE, interval_s=3600)) as heard:
        await heard.until_keys("d:127.0.0.1:9")
    with pytest.raises(OSError):  # noqa: PT011 - which one is the system's own affair
        await asyncio.wait_for(system_addresses("no-such-host.invalid", 80), 30)


@pytest.mark.parametrize("address", ["dns://engines", "http://engines:80", "dns://a:1/b", "dns://u@a:1"])
def test_what_is_no_such_name_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        DnsName(address, Role.PREFILL, interval_s=1.0)
