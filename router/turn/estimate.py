"""How long the ways of a turn take to its first token: sizes in tokens, and seconds from them. Pure.

Nobody has counted a new prompt's tokens when it is planned. What is known: how many the branch's newest
prompt had, how large the history is in bytes up to each boundary, and how many bytes a token of the model has
on average. A wrong estimate costs speed and nothing else.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from router.fleet.fit import Line
from router.fleet.load import DecodeLoad, PrefillLoad
from router.fleet.node import Node
from router.ledger.store import Found, Relation

LEG_PRICE_S: Final = 0.001
"""What one more open leg on a decode node costs the others there, in seconds of a turn's first token.

A number of ours: 30 legs more than elsewhere outweigh what D saves that already holds 24,000 tokens."""
SPREAD_PRICE_S: Final = 0.02
"""What a decode node whose KV is full costs more than an empty one, where neither makes a turn wait:
conversations spread before any node is full. A number of ours."""
KV_PRICE_FROM: Final = 0.9
KV_PRICE_S: Final = 2.0
"""A decode node whose KV would be full makes a turn wait for another's end; from ``KV_PRICE_FROM`` of its
blocks on that is priced, up to this much at all of them and in proportion beyond. Numbers of ours."""
BUSY_PRICE: Final = 1.0
"""What a second of a prefill node's computing costs those that come behind, in seconds. With random arrivals
at 60 to 70 % load an added second of service makes others wait for about one more (M/D/1)."""


class Sizes(NamedTuple):
    """A turn in tokens, estimated."""

    prompt: float
    prefill_held: float
    """What the P that computed the branch's newest prompt has in its own cache, if it keeps any."""
    decode_held: float
    """The same of the D that answered it."""
    readable: float
    """What can be read with the handle, at best."""

    @property
    def append(self) -> float:
        """What a D that holds the conversation has to compute."""
        return max(self.prompt - self.decode_held, 1.0)


def measure(
    found: Found | None, sizes_bytes: Sequence[int], *, by_message: bool, bytes_per_token: float
) -> Sizes:
    """The sizes of a request whose history has ``sizes_bytes`` up to each boundary."""
    total = sizes_bytes[-1] if sizes_bytes else 0
    if found is None or not sizes_bytes:
        return Sizes(max(total / bytes_per_token, 1.0), 0.0, 0.0, 0.0)
    trace, handle, relation = found.trace, found.handle, found.relation
    depth = min(max(found.depth, 1), len(sizes_bytes))
    known = sizes_bytes[depth - 1]
    shared = trace.prompt_tokens or known / bytes_per_token
    if relation is Relation.FORK and trace.prompt_bytes > known:
        shared *= known / trace.prompt_bytes
    answer = 0.0
    if relation is Relation.EXTENSION:
        if handle is not None and handle.prompt_tokens == trace.prompt_tokens:
            answer = float(handle.tokens - handle.prompt_tokens)
            known += int(answer * bytes_per_token) if not by_message else 0
        if by_message and depth < len(sizes_bytes):
            # The message after the branch's newest prompt is the answer to it.
            answer = answer or (sizes_bytes[depth] - known) / bytes_per_token
            known = sizes_bytes[depth]
    held = shared + answer
    prompt = max(held + max(total - known, 0) / bytes_per_token, 1.0)
    most = max(prompt - 1.0, 0.0)  # an engine always computes one token of a prompt
    readable, prefill_held = 0.0, shared
    if handle is not None:
        ratio = min(shared / trace.prompt_tokens, 1.0) if trace.prompt_tokens else 1.0
        whole = relation is Relation.EXTENSION
        readable = handle.tokens if whole else handle.prompt_tokens * ratio
        # A turn that stayed on D moved the trace on, and P saw nothing of it.
        prefill_held = min(shared, handle.prompt_tokens * ratio) if handle.prompt_tokens else shared
    return Sizes(prompt, min(prefill_held, most), min(held, most), min(readable, most))


class PrefillPart(NamedTuple):
    """The first half of a turn on one prefill node. Times in seconds."""

    seconds: float
    price_s: float
    compute_tokens: float
    move_tokens: float
    held_tokens: float
    """What P is expected to have itself, if all of it was kept."""


def on_prefill(
    load: PrefillLoad, *, prompt: float, held: float, readable: float, threshold: float, verify: Line | None
) -> PrefillPart:
    """Queue, reading and computing on P, which has ``held`` tokens itself and can read ``readable``."""
    expected = held
    held *= load.kept_share
    move = readable - held
    if move < threshold:
        move = 0.0  # an engine reads nothing below its threshold
    compute = max(prompt - held - move, 1.0)
    ready_s = load.move.fixed_s + load.move.token_s * move if move else 0.0
    busy_s = load.compute.token_s * compute
    wait_s = load.queue_s if load.queue_s > ready_s else ready_s
    seconds = wait_s + load.compute.fixed_s + busy_s
    if verify is not None:
        seconds += verify.fixed_s + verify.token_s * prompt
    return PrefillPart(seconds, BUSY_PRICE * busy_s, compute, move, expected)


class DecodePart(NamedTuple):
    """The second half, or all of a turn that one node serves, up to the first token. Times in seconds."""

    seconds: float
    price_s: float
    tokens: float
    """What D has to read, or where it stays to compute."""


def on_decode(load: DecodeLoad, node: Node, *, prompt: float, held: float) -> DecodePart:
    """D's reading from P, and its step to the first token."""
    tokens = max(prompt - held * load.kept_share, 1.0)
    seconds = (load.deliver.fixed_s + load.deliver.token_s * tokens) * load.slowdown
    return DecodePart(seconds, _room_price_s(load, node, tokens), tokens)


def staying(
    load: DecodeLoad, node: Node, *, prompt: float, held: float, kept_handle: float | None
) -> DecodePart:
    """D computes what it lacks itself.

    Its price: every answer that D is writing waits for that. And where the turn leaves no handle of its own,
    the next one finds only ``kept_handle`` tokens to be read or held elsewhere; None where it leaves one.
    """
    tokens = max(prompt - held * load.kept_share, 1.0)
    compute_s = load.compute.token_s * tokens
    price_s = _room_price_s(load, node, tokens) + compute_s * load.legs
    if kept_handle is not None:
        price_s += load.compute.token_s * max(prompt - kept_handle, 0.0)
    return DecodePart((load.compute.fixed_s + compute_s) * load.slowdown, price_s, tokens)


def _room_price_s(load: DecodeLoad, node: Node, tokens: float) -> float:
    engine, price_s = node.engine, LEG_PRICE_S * load.legs / node.weight
    if engine.kv_usage is not None and engine.num_blocks and engine.block_size:
        usage = engine.kv_usage + tokens / (engine.num_blocks * engine.block_size)
        price_s += SPREAD_PRICE_S * usage
        if usage > KV_PRICE_FROM:
            price_s += KV_PRICE_S * (usage - KV_PRICE_FROM) / (1.0 - KV_PRICE_FROM)
    return price_s
