"""What the dashboard shows: its panels by row, each with its queries and what its reader is told."""

from dataclasses import dataclass
from typing import Final

SELECTED: Final = 'job=~"$job", instance=~"$instance"'


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, with ``{}`` where the selection of routers goes; and the name of its series."""

    text: str
    legend: str = ""

    def expression(self) -> str:
        return self.text.replace("{}", f"{{{SELECTED}}}").replace("{,", f"{{{SELECTED}, ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. ``text`` is what its reader sees behind the small i."""

    title: str
    text: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    most: float | None = None
    """The axis' end."""
    stacked: bool = False
    bad_above: float | None = None
    good_above: float | None = None
    """Thresholds of a single figure, for its colour."""


def rate(metric: str, by: str = "", where: str = "") -> str:
    grouping = f" by ({by}) " if by else ""
    return f"sum{grouping}(rate({metric}{{{',' if where else ''}{where}}}[$__rate_interval]))"


def quantile(q: float, metric: str, by: str = "", where: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', labels, where)})"


def quantiles(metric: str, where: str = "") -> tuple[Query, ...]:
    return tuple(Query(quantile(q, metric, where=where), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99))


TTFT: Final = "boomerang_time_to_first_byte_seconds"
STREAMED: Final = 'stream="yes"'
FAULT: Final = 'ended_by="fault"'

ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "At a glance",
        (
            Panel(
                title="Prompt tokens that came back",
                text="Share of prompt tokens that no engine computed again, over the time shown.",
                queries=(
                    Query(
                        "sum(increase(boomerang_reused_tokens_total{}[$__range]))"
                        " / sum(increase(boomerang_prompt_tokens_total{}[$__range]))"
                    ),
                ),
                unit="percentunit",
                kind="stat",
                width=4,
                height=5,
                good_above=0.3,
            ),
            Panel(
                title="Turns a second",
                text="Turns that ended, of all plans.",
                queries=(Query(rate("boomerang_turns_total")),),
                unit="reqps",
                kind="stat",
                width=4,
                height=5,
            ),
            Panel(
                title="Time to first token, p95",
                text="Of streamed turns: from the request to the first byte of its answer.",
                queries=(Query(quantile(0.95, TTFT, where=STREAMED)),),
                unit="s",
                kind="stat",
                width=4,
                height=5,
            ),
            Panel(
                title="Turns that end in a fault",
                text="An engine broke or was not there, or the router itself failed.",
                queries=(
                    Query(
                        f"({rate('boomerang_turns_total', where=FAULT)} or vector(0))"
                        f" / {rate('boomerang_turns_total')}"
                    ),
                ),
                unit="percentunit",
                kind="stat",
                width=4,
                height=5,
                bad_above=0.02,
            ),
            Panel(
                title="Nodes that are ready",
                text="As most routers see them.",
                queries=(
                    Query(
                        'count by (role) (max by (role, node) (boomerang_node_state{,state="ready"}) == 1)',
                        "{{role}}",
                    ),
                ),
                kind="stat",
                width=4,
                height=5,
            ),
            Panel(
                title="Pinned, fullest decode node",
                text="Share of its KV that handles pin. At pin_budget (default 50 %) the least likely"
                " conversations are released.",
                queries=(Query("max(boomerang_pinned_share{})"),),
                unit="percentunit",
                kind="stat",
                width=4,
                height=5,
                bad_above=0.8,
            ),
        ),
    ),
    (
        "What comes back",
        (
            Panel(
                title="Prompt tokens, reused and computed",
                text="Reused: no engine computed them in that turn.",
                queries=(
                    Query(rate("boomerang_reused_tokens_total"), "reused"),
                    Query(
                        f"{rate('boomerang_prompt_tokens_total')}"
                        f" - ({rate('boomerang_reused_tokens_total')} or vector(0))",
                        "computed",
                    ),
                ),
                unit="short",
                stacked=True,
            ),
            Panel(
                title="Turns by plan",
                text="cold: computed; pull: read from the decode node; local: the prefill node still had it;"
                " stay: decode node alone; unsplit: not split at all.",
                queries=(Query(rate("boomerang_turns_total", "plan"), "{{plan}}"),),
                unit="reqps",
                stacked=True,
            ),
            Panel(
                title="Why turns are cold",
                text="docs/metrics.md has what each reason means. first_turn is nobody's fault.",
                queries=(Query(rate("boomerang_turns_total", "reason", 'plan="cold"'), "{{reason}}"),),
                unit="reqps",
                stacked=True,
            ),
            Panel(
                title="What becomes of handles",
                text="used and cut are what they are for; failed and lost are not.",
                queries=(Query(rate("boomerang_handles_total", "outcome"), "{{outcome}}"),),
                unit="ops",
            ),
            Panel(
                title="Where tokens part from the handle's",
                text="answer: in the last answer; history: further back, as where a template strips old"
                " reasoning; edit: the client sent another history.",
                queries=(
                    Query(rate("boomerang_divergences_total", "parted, outcome"), "{{parted}}: {{outcome}}"),
                ),
                unit="ops",
            ),
            Panel(
                title="Reused share by plan",
                text="Of the prompt tokens of turns of each plan.",
                queries=(
                    Query(
                        f"{rate('boomerang_reused_tokens_total', 'plan')}"
                        f" / {rate('boomerang_prompt_tokens_total', 'plan')}",
                        "{{plan}}",
                    ),
                ),
                unit="percentunit",
                most=1,
            ),
        ),
    ),
    (
        "How long it takes",
        (
            Panel(
                title="Time to first token",
                text="Of streamed turns, all plans.",
                queries=quantiles(TTFT, STREAMED),
                unit="s",
            ),
            Panel(
                title="Time to first token by plan, p95",
                text="pull above cold: reading costs more than computing. Look at the network between nodes.",
                queries=(Query(quantile(0.95, TTFT, "plan", STREAMED), "{{plan}}"),),
                unit="s",
            ),
            Panel(
                title="Whole turns by plan, p95",
                text="From the request to the end of its answer.",
                queries=(Query(quantile(0.95, "boomerang_turn_seconds", "plan"), "{{plan}}"),),
                unit="s",
            ),
            Panel(
                title="Legs, p95",
                text="Prefill legs that went well; decode legs from their sending to their end.",
                queries=(
                    Query(quantile(0.95, "boomerang_prefill_leg_seconds", "plan"), "prefill, {{plan}}"),
                    Query(quantile(0.95, "boomerang_decode_leg_seconds", "plan"), "decode, {{plan}}"),
                ),
                unit="s",
            ),
            Panel(
                title="Between the legs",
                text="From the end of the prefill leg to the sending of the decode leg: the router alone."
                " Near the lease (30 s) prefill nodes drop what they computed.",
                queries=quantiles("boomerang_prefill_decode_gap_seconds"),
                unit="s",
            ),
            Panel(
                title="Estimates: real ÷ estimated, median",
                text="Of the time to first token, by plan. Far from 1: the planner has the wrong picture.",
                queries=(Query(quantile(0.5, "boomerang_estimate_ratio", "plan"), "{{plan}}"),),
                unit="short",
            ),
            Panel(
                title="Verification in the router, p95",
                text="To render a prompt and compare its tokens. With the plugin the engines do it.",
                queries=(Query(quantile(0.95, "boomerang_verify_seconds"), "p95"),),
                unit="s",
            ),
            Panel(
                title="Waiting for a place",
                text="Turns that wait now, and how long those that waited did. After admission_wait_s: 503.",
                queries=(
                    Query("sum(boomerang_waiting_turns{})", "waiting now"),
                    Query(quantile(0.95, "boomerang_admission_wait_seconds"), "p95, seconds"),
                ),
            ),
            Panel(
                title="Open turns",
                text="By router. Zero when nothing happens.",
                queries=(Query("sum by (instance) (boomerang_open_turns{})", "{{instance}}"),),
            ),
        ),
    ),
    (
        "Nodes",
        (
            Panel(
                title="Nodes by state",
                text="A node that one router sees as ready and another as ejected counts as both.",
                queries=(
                    Query(
                        "count by (role, state) (max by (role, node, state) (boomerang_node_state{}) == 1)",
                        "{{role}}: {{state}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                title="Open legs",
                text="Uneven for long: weights or limits are off.",
                queries=(Query("sum by (node) (boomerang_open_legs{})", "{{node}}"),),
            ),
            Panel(
                title="Legs that failed, and what the turn did",
                text="All but fail and error_event are retries that clients did not see.",
                queries=(
                    Query(rate("boomerang_leg_failures_total", "node, action"), "{{node}}: {{action}}"),
                ),
                unit="ops",
            ),
            Panel(
                title="What legs failed of",
                text="timed_out: limits too short, or engines that hang; unreachable: network, or node down.",
                queries=(Query(rate("boomerang_leg_faults_total", "role, fault"), "{{role}}: {{fault}}"),),
                unit="ops",
            ),
            Panel(
                title="Ejections",
                text="By probes (the engine is down or overloaded) or by legs (it fails turns).",
                queries=(Query(rate("boomerang_node_ejections_total", "node, why"), "{{node}}: {{why}}"),),
                unit="ops",
            ),
            Panel(
                title="Breakers that are not closed",
                text="open: no turns; trying: one leg on trial. For long: it answers probes and fails legs.",
                queries=(
                    Query(
                        'sum by (circuit) (boomerang_node_breaker{,circuit!="closed"}) or vector(0)',
                        "{{circuit}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "Memory and pins",
        (
            Panel(
                title="Share of KV that handles pin",
                text="By decode node.",
                queries=(Query("max by (node) (boomerang_pinned_share{})", "{{node}}"),),
                unit="percentunit",
                most=1,
            ),
            Panel(
                title="Handles that wait",
                text="For their conversation's next turn; and to be released.",
                queries=(
                    Query("max(boomerang_ledger_handles{})", "in the ledger"),
                    Query("sum by (node) (max by (job, node) (boomerang_pinned_handles{}))", "on {{node}}"),
                    Query("sum(boomerang_release_queue{})", "to be released"),
                ),
            ),
            Panel(
                title="Handles that nobody came back for",
                text="expired: the conversation was silent for longer than the decode nodes' time to live;"
                " evicted: the ledger is too small.",
                queries=(
                    Query(rate("boomerang_ledger_expired_handles_total"), "expired"),
                    Query(rate("boomerang_ledger_evicted_handles_total"), "evicted"),
                ),
                unit="ops",
            ),
            Panel(
                title="Branches",
                text="At max_branches the ledger forgets what may come back.",
                queries=(Query("max(boomerang_ledger_branches{})", "branches"),),
            ),
            Panel(
                title="Calls of the shared store, p99",
                text="Near store_timeout_s it is too far away, or too busy. Nothing with memory.",
                queries=(
                    Query(quantile(0.99, "boomerang_ledger_call_seconds", "operation"), "{{operation}}"),
                ),
                unit="s",
            ),
            Panel(
                title="The shared store",
                text="1: it is asked; 0: it has been given up, and turns run cold. Nothing with memory.",
                queries=(
                    Query("min by (server) (boomerang_store_up{})", "{{server}}"),
                    Query(
                        rate("boomerang_ledger_failures_total", "operation"), "failed {{operation}} a second"
                    ),
                ),
            ),
        ),
    ),
    (
        "Clients and the router itself",
        (
            Panel(
                title="Answers by status",
                text="499: the client left before there was one.",
                queries=(Query(rate("boomerang_answers_total", "status"), "{{status}}"),),
                unit="reqps",
                stacked=True,
            ),
            Panel(
                title="Clients that left, and requests refused",
                text="In prefill or first_token: turns take longer than clients wait.",
                queries=(
                    Query(rate("boomerang_client_departures_total", "phase"), "left in {{phase}}"),
                    Query(rate("boomerang_refusals_total", "code"), "{{code}}"),
                ),
                unit="reqps",
            ),
            Panel(
                title="CPU",
                text="Cores, by router. One process has one.",
                queries=(
                    Query(
                        "sum by (instance) (rate(process_cpu_seconds_total{}[$__rate_interval]))",
                        "{{instance}}",
                    ),
                ),
            ),
            Panel(
                title="Memory",
                text="Resident, by router.",
                queries=(Query("sum by (instance) (process_resident_memory_bytes{})", "{{instance}}"),),
                unit="bytes",
            ),
            Panel(
                title="Discovery and background tasks that failed",
                text="Any: see the router's log.",
                queries=(
                    Query("sum(boomerang_discovery_failures_total{}) or vector(0)", "discovery"),
                    Query("sum(boomerang_task_failures_total{}) or vector(0)", "tasks"),
                    Query("sum(boomerang_prompt_mismatches_total{}) or vector(0)", "prompts read otherwise"),
                ),
            ),
            Panel(
                title="Versions",
                text="Routers by version, and how they verify.",
                queries=(
                    Query(
                        "count by (version, verify) (boomerang_build_info{})",
                        "{{version}}, verify={{verify}}",
                    ),
                ),
            ),
        ),
    ),
)
