from router.sim.pins import Pin, Pins


def pin(name: str, deadline_s: float | None) -> Pin:
    return Pin(name, [1, 2], 20, deadline_s, "decode")


def test_a_pin_ends_by_a_read_or_by_its_time() -> None:
    pins = Pins()
    for name, deadline_s in (("read", 9.0), ("late", 5.0), ("later", 9.0), ("never", None)):
        pins.add(pin(name, deadline_s))
    assert pins.next_deadline() == 5.0
    assert pins.tokens == 80
    assert pins.free("read") is not None
    assert [gone.request_id for gone in pins.expired(5.0)] == ["late"]
    assert [gone.request_id for gone in pins.expired(1e9)] == ["later"]
    assert pins.next_deadline() is None
    states = [pins.state(name) for name in ("read", "late", "never", "unheard")]
    assert states == ["used", "expired", "kept", "unknown"]


def test_what_nothing_frees() -> None:
    pins = Pins()
    pins.add(pin("never", None))
    assert pins.free("never") is None
    assert pins.free("unheard") is None
    assert list(pins.by_request) == ["never"]


def test_a_lease_that_is_held_outlives_its_deadline() -> None:
    pins, leased = Pins(), pin("leased", 5.0)
    pins.add(leased)
    leased.held = True
    assert pins.expired(10.0) == []
    leased.reads = 1
    assert pins.state("leased") == "used"
    assert pins.free("leased") is leased
