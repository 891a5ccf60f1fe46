"""The published workload, played through the real router over sockets against simulated engines.

Every process is one of its own, as in a deployment: a pair of engines and a router without transfer, and the
same with it. The client resends its whole history at every request, streamed, one request at a time.
"""

import contextlib
import http.client
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from router.bench.published import ANSWER_TOKENS, Transfer, prompt_lengths
from router.bench.streamed import ask
from router.demo.processes import BOOMERANG, free_port, process, wait_ready
from router.sim.config import EngineConfig
from router.sim.template import TemplateOptions, render_chat
from router.sim.tokens import decode, encode

GIVE_UP_S: Final = 60.0
NUM_BLOCKS: Final = 131_072
"""Of 16 tokens: room for the last turn of every conversation, which D keeps for its whole time to live."""
TRANSFERS: Final[tuple[Transfer, Transfer]] = ("off", "on")
_TEXT: Final = (
    "request handler returns cached block before lease expiry while scheduler keeps queue order stable under "
    "load and threads flush pending writes into the journal on commit"
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the client saw it. Times in milliseconds."""

    transfer: Transfer
    mean_prompt_tokens: int
    """Of its conversation: what the published figures are told by."""
    conversation: int
    number: int
    """From 0 in its conversation: the first one has nothing to reuse."""
    prompt_tokens: int
    reused_tokens: int
    plan: str
    first_token_ms: float


@dataclass(frozen=True, slots=True)
class Legs:
    """Where one side of the comparison listens."""

    router: str
    prefill: str
    decode: str


@contextlib.contextmanager
def pools(
    profile: str,
    *,
    plugin: bool,
    transfers: Sequence[Transfer] = TRANSFERS,
    times_ms: Mapping[str, float] | None = None,
) -> Iterator[dict[Transfer, Legs]]:
    """One prefill and one decode engine and a router for each side. Raises NotStarted.

    ``times_ms``: times of the profile, by name, that the engines take instead of its own.

    As published, P has no prefix cache. D has none either: how long D takes until its first token is
    calibrated by the length of the whole prompt.
    """
    with tempfile.TemporaryDirectory(prefix="boomerang-figures-") as folder, contextlib.ExitStack() as stack:
        made, waited = dict[Transfer, Legs](), []
        for transfer in transfers:
            prefill, decoding, router = free_port(), free_port(), free_port()
            origins = [f"http://127.0.0.1:{port}" for port in (router, prefill, decoding)]
            engine = ["sim", "--profile", profile, "--output-ms", "0", "--no-prefix-cache"]
            engine += ["--num-blocks", str(NUM_BLOCKS), *(["--plugin"] if plugin else [])]
            for name, milliseconds in (times_ms or {}).items():
                engine += ["--time", f"{name}={milliseconds:.9f}"]
            engine += ["--no-bidirectional"] if transfer == "off" else []
            serve = ["serve", "--prefill", origins[1], "--decode", origins[2], "--log-level", "warning"]
            # Each turn has both legs, as it had in the published measurements.
            serve += ["--policy", "sticky", "--stay-max-tokens", "0", "--port", str(router)]
            serve += ["--verify", "off"] if transfer == "off" else []
            commands = (
                (f"prefill engine, transfer {transfer}", [*engine, "--role=prefill"], prefill, "/health"),
                (f"decode engine, transfer {transfer}", [*engine, "--role=decode"], decoding, "/health"),
                (f"router, transfer {transfer}", serve, router, "/ready"),
            )
            for name, arguments, port, path in commands:
                log = Path(folder) / f"{port}.log"
                own_port = [] if "serve" in arguments else ["--port", str(port)]
                started = stack.enter_context(process([*BOOMERANG, *arguments, *own_port], log))
                waited.append((name, started, log, f"http://127.0.0.1:{port}{path}"))
            made[transfer] = Legs(*origins)
        for name, started, log, url in waited:
            wait_ready(name, started, log, url)
        yield made


def text_of(seed: str, tokens: int) -> str:
    """Reproducible text of exactly ``tokens`` tokens, as the simulated engines split it."""
    draw = random.Random(seed)  # noqa: S311 - reproducible text, no secret
    ids = encode(" ".join(draw.choices(_TEXT.split(), k=tokens)))
    return decode(ids[:tokens])


def converse(
    router: str, transfer: Transfer, mean_tokens: int, conversation: int, requests: int
) -> Iterator[Request]:
    """Play one conversation; each request's prompt has exactly the length that it is to have.

    Raises NoAnswer, and OSError or HTTPException where there is no connection.
    """
    parts = urlsplit(router)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=GIVE_UP_S)
    messages: list[dict[str, Any]] = []
    try:
        for number, prompt_tokens in enumerate(prompt_lengths(mean_tokens, requests)):
            messages.append({"role": "user", "content": ""})
            missing = prompt_tokens - _rendered_tokens(messages)
            # Different from its first token on in every conversation and on both sides.
            seed = f"{transfer} {mean_tokens} {conversation} {number}"
            messages[-1]["content"] = text_of(seed, missing)
            body = {
                "model": EngineConfig().model, "messages": messages, "stream": True, "temperature": 0,
                "max_tokens": ANSWER_TOKENS, "ignore_eos": True,
            }  # fmt: skip
            answer = ask(connection, body)
            messages.append({"role": "assistant", "content": answer.text})
            yield Request(
                transfer=transfer,
                mean_prompt_tokens=mean_tokens,
                conversation=conversation,
                number=number,
                prompt_tokens=prompt_tokens,
                reused_tokens=int(answer.headers.get("x-boomerang-reused-tokens") or 0),
                plan=answer.headers.get("x-boomerang-plan") or "",
                first_token_ms=answer.first_ms,
            )
    finally:
        connection.close()


def _rendered_tokens(messages: Sequence[dict[str, Any]]) -> int:
    return len(encode(render_chat({"messages": messages}, TemplateOptions()).text))


def wrong_kv(legs: Sequence[Legs]) -> int:
    """How often any of the engines used KV that was not its prompt's: they check every block."""
    origins = [origin for one in legs for origin in (one.prefill, one.decode)]
    return sum(len(httpx.get(f"{origin}/sim/state", timeout=10).json()["corruptions"]) for origin in origins)
