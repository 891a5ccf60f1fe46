"""The page of plans and reasons: the values of ``x-boomerang-plan`` and ``x-boomerang-reason``."""

from itertools import chain

from router.ledger.store import Absence, Relation
from router.turn.handle import Uncut
from router.turn.plan import Kind, Reason
from router.turn.request import Unsplit
from scripts.reference.markdown import code, page, same, table

PLANS = {
    "cold": "P computes the prompt, less what its own prefix cache holds; D reads it from P and answers",
    "pull": "P reads from D what D holds of the prompt, and computes the rest",
    "local": "the same on the P that computed the last turn: it reads only what it lacks itself",
    "stay": "D alone: it holds the conversation in its own cache and computes the few tokens that are new",
    "unsplit": "one node does both halves",
}
REUSED = {
    "extension": "the request goes on where the branch ended: the usual next turn",
    "regenerated": "the branch's newest prompt again",
    "fork": "it left the branch earlier: an edit, a fork, a side request, a compaction",
}
COLD = {
    "first_turn": (
        "nothing is known of the history",
        "nothing; where it should be known: [troubleshooting](../troubleshooting.md)",
    ),
    "no_handle": (
        "the branch is known, but its engine gave no handle, or another turn has it",
        "look at `stream_handle` of `boomerang check`; parallel requests of one history are normal",
    ),
    "expired": (
        "the handle's deadline has passed",
        "[`decode_ttl_s`](../tuning.md#time-to-live), if D really keeps longer",
    ),
    "small_gain": (
        "a fork or side request would gain too little to take the main line's handle",
        "nothing; [`take_share`](../tuning.md#forks)",
    ),
    "released": ("the handle was given back early", "[the pin budget](../tuning.md#pin-budget)"),
    "verify_off": ("`--verify off`", "–"),
    "no_identity": (
        "`--identity-header` is set and the request has none, or a credential came twice",
        "let the gateway set the header",
    ),
    "ledger_down": ("the shared store did not answer in time", "[Redis](../redis.md)"),
    "engine_restarted": ("another process runs on D by now", "nothing, unless it restarts often"),
    "holder_gone": ("the D that holds the KV is away or cannot be read from", "look at `/health`"),
    "pair_cooling": (
        "a pull of this pair failed lately; handles rest for 30 s",
        "the log names the failure; `boomerang check`",
    ),
    "model_mistrusted": (
        "P read another prompt than was verified: no reuse of this model for a while",
        "the same templates and versions on P and D; the plugin, which compares in the engine",
    ),
    "unverifiable": (
        "nobody can compare the tokens: no plugin, and the body has a field that the tokenizer route does not see",
        "the plugin on P and D; or `--enable-scale-out` on P, which opens `/render`",
    ),
    "media": (
        "images or the like past the known messages; tokens prove nothing there",
        "the plugin on P and D",
    ),
    "block_size": ("P and D hold blocks of different sizes", "one `--block-size`"),
    "retry": (
        "the prefill leg with the handle failed or was overdue, and ran again without",
        "the log; `boomerang check`; [`pull_timeout_s`](../tuning.md#time-outs)",
    ),
    "mismatch": (
        "P read another prompt than was verified; computed again under a salt",
        "as for `model_mistrusted`",
    ),
    "cheaper": (
        "computing takes less time than reading, as both were measured",
        "nothing; a slow network between P and D",
    ),
    "diverged": (
        "too few of the handle's tokens are the prompt's own",
        "normal where templates strip reasoning or clients change history; see [why](../why.md)",
    ),
    "kv_groups": (
        "several KV cache groups (sliding windows, hybrid models): a handle is used whole or not at all",
        "–",
    ),
    "context_parallel": ("decode context parallelism: the same", "–"),
    "block_count": ("the handle's blocks and tokens do not fit each other: the same", "–"),
}
UNSPLIT = {
    "endpoint": "the route is not one that can be split",
    "n": "`n` is not 1",
    "best_of": "`best_of` is not 1",
    "beam_search": "`use_beam_search`",
    "prompt_list": "several prompts in one request",
    "echo_logprobs": "`echo` with `logprobs`; of a chat, `echo`",
    "truncation": "`truncate_prompt_tokens` is negative: what is cut off depends on the answer's length",
    "prompt_logprobs": "`prompt_logprobs`",
    "prompt_embeds": "`prompt_embeds`",
}
INTRO = """\
Each answer carries its plan in `x-boomerang-plan` and the reason in `x-boomerang-reason`; so do the log line and the metrics.
P is the prefill node of the turn, D its decode node."""


def plans_page() -> str:
    """Raises Incomplete where the code has another plan or reason."""
    same("plans", [*Kind], PLANS)
    same("reasons", {*chain(Relation, Absence, Reason, Uncut, Unsplit)}, {*REUSED, *COLD, *UNSPLIT})
    return page(
        "Plans and reasons",
        INTRO,
        "## Plans",
        table(("plan", "the turn"), ((code(kind), PLANS[kind]) for kind in Kind)),
        "## Reasons",
        "### Of turns that reuse",
        table(("reason", "means"), ((code(name), text) for name, text in REUSED.items())),
        "The same words with `cold`: the branch was found, and there was nothing of it to read.",
        "### Of cold turns",
        table(("reason", "means", "do"), ((code(name), *texts) for name, texts in COLD.items())),
        "### Of unsplit turns",
        table(("reason", "means"), ((code(name), text) for name, text in UNSPLIT.items())),
    )
