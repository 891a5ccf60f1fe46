from array import array

from router.sim.blocks import BlockPool, chain, context_value, cut, extend, garbage, make, origin

START = origin("")


def content(*tokens: int) -> bytes:
    return array("I", tokens).tobytes()


LONG = content(*range(1, 11))


def test_a_value_depends_on_all_tokens_before() -> None:
    one, two = chain(LONG, 4, START), chain(content(9, *range(2, 11)), 4, START)
    assert [kv.tokens for kv in one] == [4, 4, 2]
    assert all(a.value != b.value for a, b in zip(one, two, strict=True))
    assert chain(LONG, 4, origin("adapter"))[0].value != one[0].value


def test_a_cut_block_is_the_block_of_the_shorter_prompt() -> None:
    full, short = chain(LONG, 4, START), chain(LONG[: 6 * 4], 4, START)
    assert cut(full[1], 2) == short[1]
    assert cut(short[1], 4).value != full[1].value, "positions that were never computed"


def test_the_rest_of_clean_blocks_comes_out_clean() -> None:
    want = chain(LONG, 4, START)
    for tokens in range(11):
        present = [cut(kv, min(4, tokens - i * 4)) for i, kv in enumerate(want) if i * 4 < tokens]
        assert extend(present, want, tokens, 4) == list(want)


def test_a_wrong_block_spoils_all_that_is_computed_on_it() -> None:
    want = chain(LONG, 4, START)
    for tokens, present in (
        (4, [garbage(b"x")]),
        (8, [garbage(b"x"), want[1]]),
        (6, [want[0], garbage(b"y")]),
    ):
        actual = extend(present, want, tokens, 4)
        assert actual[-1].value != want[-1].value
        assert context_value(actual, want)[1] is False
    assert context_value(want, want) == (want[-1].value, True)


def test_the_answer_tells_different_wrong_contexts_apart() -> None:
    want = chain(LONG, 4, START)
    seeds = {context_value([garbage(name), *want[1:]], want)[0] for name in (b"x", b"y")}
    assert len(seeds) == 2


def test_the_prefix_cache_shares_blocks_and_evicts_the_oldest_free_ones() -> None:
    pool, want = BlockPool(5, 4, caching=True), chain(LONG, 4, START)
    first = pool.allocate(2)
    assert first is not None
    for block, kv in zip(first, want[:2], strict=True):
        pool.write(block, kv)
        pool.file(block, "", kv)
    assert pool.hits("", want, 2) == first
    assert pool.hits("salt", want, 2) == []
    assert pool.allocate(3) is None, "two of four blocks are held"
    pool.release(first)
    assert pool.usage == 0.5
    pool.release(first)
    assert pool.usage == 0.0
    assert pool.allocate(3) is not None
    assert pool.hits("", want, 2) == first[:1], "a prompt's end goes before its beginning"


def test_a_freed_block_that_nobody_knows_is_overwritten() -> None:
    pool, kv = BlockPool(4, 4, caching=False), make(START, LONG[:16])
    block = pool.allocate(1)
    assert block is not None
    pool.write(block[0], kv)
    pool.file(block[0], "", kv)
    assert pool.read(block[0]) == kv
    pool.release(block)
    assert pool.read(block[0]).value != kv.value
    assert pool.hits("", (kv,), 1) == []
