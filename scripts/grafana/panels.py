"""Panels of the dashboards: title, unit, queries, purpose. `__main__` writes their JSON."""

from typing import Final, NamedTuple

RATE: Final = "[$__rate_interval]"
RANGE: Final = "[$__range]"
OF: Final = 'job=~"$job"'
"""The label match that each selector has."""


class Query(NamedTuple):
    """One query of a panel. `legend`: what Grafana shows of a series."""

    expr: str
    legend: str = ""


class Shown(NamedTuple):
    """One panel. `kind`: a figure, or a graph over time. `unit`: by Grafana's name."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "graph"


class Board(NamedTuple):
    """One dashboard: rows of panels."""

    uid: str
    title: str
    description: str
    rows: tuple[tuple[str, tuple[Shown, ...]], ...]


def total(metric: str, by: str = "", labels: str = "") -> str:
    match = f"{OF},{labels}" if labels else OF
    return f"sum{f' by ({by}) ' if by else ''}({metric}{{{match}}})"


def grown(metric: str, window: str, by: str = "", function: str = "increase") -> str:
    return f"sum{f' by ({by}) ' if by else ''}({function}({metric}{{{OF}}}{window}))"


def usd(list_side: str, price_side: str = "") -> str:
    """Billionths of a USD as USD; less another sum."""
    return f"({list_side} - {price_side}) / 1e9" if price_side else f"{list_side} / 1e9"


def quantile(share: str, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{OF}}}{RATE})))"


def worker(name: str) -> Query:
    return Query(f"max by (worker) (warmroute_worker_{name}{{{OF}}})", "{{worker}}")


LIST, PRICE = "warmroute_list_nanousd_total", "warmroute_price_nanousd_total"
PROTECTED, TOKEN_LIMIT = "warmroute_worker_kv_protected_tokens", "warmroute_worker_token_limit"
CACHED, PROMPT = "warmroute_cached_tokens_total", "warmroute_prompt_tokens_total"
PREDICTED, LOSS = "warmroute_predicted_tokens_total", "warmroute_loss_tokens_total"
NEVER_CACHED, NOT_HELD, ELSEWHERE = (
    "new|cold|prefix_changed|salt_changed|page_rounding|engine_misreport",
    "not_computed_yet|evicted|forgotten|not_kept", "moved|elsewhere",
)  # fmt: skip
"""Loss classes by the step of the ladder that they lead to (docs/reference/ladder.md)."""


def lost(classes: str, window: str, function: str = "increase") -> str:
    """Lost tokens of some classes; 0 if there are none."""
    return f'(sum({function}({LOSS}{{{OF},class=~"{classes}"}}{window})) or vector(0))'


def ladder(window: str, function: str) -> tuple[Query, ...]:
    """The steps of the ladder as shares of the prompt tokens."""
    prompt = grown(PROMPT, window, function=function)
    chosen = grown(PREDICTED, window, function=function)
    steps = {
        "reachable": f"({prompt} - {lost(NEVER_CACHED, window, function)})",
        "kept": f"({prompt} - {lost(f'{NEVER_CACHED}|{NOT_HELD}', window, function)})",
        "predicted": f"({chosen} + {lost(ELSEWHERE, window, function)})",
        "chosen": chosen,
        "delivered": grown(CACHED, window, function=function),
    }
    return tuple(Query(f"{expr} / {prompt}", step) for step, expr in steps.items())


def lost_usd(classes: str) -> Query:
    """What lost tokens cost, at the mean of what a cached token saved in this time."""
    saved = f"({grown(LIST, RANGE)} - {grown(PRICE, RANGE)})"
    return Query(f"{lost(classes, RANGE)} * {saved} / {grown(CACHED, RANGE)} / 1e9")


MONEY: Final = Board(
    "warmroute-money",
    "warmroute: cache and money",
    "What the caches save, and why the rest was computed. Tenants are not here: `warmroute usage` has them.",
    (
        (
            "In this time",
            (
                Shown("Hit ratio", "Share of prompt tokens that was cached.", "percentunit",
                      (Query(f"{grown(CACHED, RANGE)} / {grown(PROMPT, RANGE)}"),), "figure"),
                Shown("Saved", "List price less price. Prometheus extrapolates at the edges of the time range.",
                      "currencyUSD", (Query(usd(grown(LIST, RANGE), grown(PRICE, RANGE))),), "figure"),
                Shown("Paid", "Price of settled turns, of the same kind.", "currencyUSD",
                      (Query(usd(grown(PRICE, RANGE))),), "figure"),
                Shown("Turns", "Settled turns.", "short", (Query(grown("warmroute_turns_total", RANGE)),), "figure"),
            ),
        ),
        (
            "Since the proxies started",
            (
                Shown("Hit ratio since the start", "Share of prompt tokens that was cached.", "percentunit",
                      (Query(f"{total(CACHED)} / {total(PROMPT)}"),), "figure"),
                Shown("Saved since the start", "Equal to the ledger's rows of the same processes.", "currencyUSD",
                      (Query(usd(total(LIST), total(PRICE))),), "figure"),
                Shown("Paid since the start", "Equal to the ledger's rows of the same processes.", "currencyUSD",
                      (Query(usd(total(PRICE))),), "figure"),
                Shown("List price since the start", "What the turns would have cost without a cache.", "currencyUSD",
                      (Query(usd(total(LIST))),), "figure"),
            ),
        ),
        (
            "The ladder: where cached tokens went",
            (
                Shown("Steps of the ladder", "Shares of prompt tokens: docs/reference/ladder.md. `warmroute ladder` "
                      "has each turn's own prices.", "percentunit", ladder(RATE, "rate")),
                Shown("Steps of the ladder in this time", "The same, over the whole time range.", "percentunit",
                      ladder(RANGE, "increase"), "figure"),
                Shown("Lost by placement", "Moved or elsewhere, at the mean saving of a cached token. Affinity or a "
                      "second replica wins it back.", "currencyUSD", (lost_usd(ELSEWHERE),), "figure"),
                Shown("Lost by memory", "Evicted or not kept, likewise. A smaller working set or a host tier wins it "
                      "back.", "currencyUSD", (lost_usd("evicted|not_kept"),), "figure"),
                Shown("Lost by changed prefixes", "Likewise. Repair of the prompt wins it back.", "currencyUSD",
                      (lost_usd("prefix_changed"),), "figure"),
            ),
        ),
        (
            "Over time",
            (
                Shown("Hit ratio over time", "Share of prompt tokens that was cached.", "percentunit",
                      (Query(f"{grown(CACHED, RATE, function='rate')} / {grown(PROMPT, RATE, function='rate')}",
                             "hit ratio"),)),
                Shown("USD an hour", "What is saved and paid, at the rate of this time.", "currencyUSD",
                      (Query(f"3600 * {usd(grown(LIST, RATE, function='rate'), grown(PRICE, RATE, function='rate'))}",
                             "saved"),
                       Query(f"3600 * {usd(grown(PRICE, RATE, function='rate'))}", "paid"))),
                Shown("Tokens not cached, by class", "Why they were computed: classes of docs/reference/receipt.md.",
                      "short", (Query(grown("warmroute_loss_tokens_total", RATE, "class", "rate"), "{{class}}"),)),
                Shown("Cached tokens by tier", "Where they were: GPU memory, host memory, storage.", "short",
                      (Query(grown(CACHED, RATE, "tier", "rate"), "{{tier}}"),)),
                Shown("Losses since the start, by class", "Prompt tokens not cached.", "short",
                      (Query(total("warmroute_loss_tokens_total", "class"), "{{class}}"),)),
                Shown("Turns by outcome", "Turns a second; only `completed` and `client_left` are charged.", "reqps",
                      (Query(grown("warmroute_turns_total", RATE, "outcome", "rate"), "{{outcome}}"),)),
            ),
        ),
    ),
)  # fmt: skip

OPERATORS: Final = Board(
    "warmroute-operators",
    "warmroute: engines and queue",
    "Whether the fleet keeps up: latency, queue, engines, KV memory, the working set.",
    (
        (
            "Now",
            (
                Shown("Engines up", "Engines that answer, each counted once, whatever the number of proxies.", "short",
                      (Query(f"sum(max by (namespace, region, job, engine) (warmroute_engine_up{{{OF}}}))"),),
                      "figure"),
                Shown("Troubles", "What /ready says, of all proxies: docs/runbooks.", "short",
                      (Query(total("warmroute_trouble")),), "figure"),
                Shown("Open turns", "Turns under way.", "short", (Query(total("warmroute_turns_live")),), "figure"),
                Shown("Queue", "Requests that wait.", "short", (Query(total("warmroute_queue_requests")),), "figure"),
            ),
        ),
        (
            "Requests",
            (
                Shown("Time to the first token", "Of streams. Exemplars lead to traces.", "s",
                      (Query(quantile("0.5", "warmroute_ttft_seconds"), "p50"),
                       Query(quantile("0.9", "warmroute_ttft_seconds"), "p90"),
                       Query(quantile("0.99", "warmroute_ttft_seconds"), "p99"))),
                Shown("Answers by status", "Requests a second.", "reqps",
                      (Query(grown("warmroute_requests_total", RATE, "status", "rate"), "{{status}}"),)),
                Shown("Retries and refusals", "Attempts after a failure; requests refused early.", "reqps",
                      (Query(grown("warmroute_retries_total", RATE, function="rate"), "retries"),
                       Query(grown("warmroute_refused_total", RATE, "reason", "rate"), "refused: {{reason}}"))),
                Shown("Wait in the queue", "Of turns that had to wait.", "s",
                      (Query(quantile("0.5", "warmroute_queue_wait_seconds"), "p50"),
                       Query(quantile("0.9", "warmroute_queue_wait_seconds"), "p90"))),
            ),
        ),
        (
            "Engines",
            (
                Shown("Engine up", "1 while it answers.", "short",
                      (Query(f"max by (engine) (warmroute_engine_up{{{OF}}})", "{{engine}}"),)),
                Shown("Running requests", "Open requests of each worker.", "short", (worker("running"),)),
                Shown("Prefill ahead of a new request", "Seconds of queued prefill.", "s", (worker("queue_s"),)),
                Shown("Measured pace of prefill", "Seconds for a prompt token.", "s", (worker("prefill_s_per_token"),)),
            ),
        ),
        (
            "KV memory and working set",
            (
                Shown("KV pool in use", "As engines report it, by tier.", "percentunit",
                      (Query(f"max by (worker, tier) (warmroute_worker_kv_usage_ratio{{{OF}}})",
                             "{{worker}} {{tier}}"),)),
                Shown("Working set of the pools", "Tokens in use or likely to be used soon.", "percentunit",
                      (Query(f"{total(PROTECTED)} / {total(TOKEN_LIMIT)}", "protected"),)),
                Shown("Conversations that hold KV", "By the proxy's books.", "short", (worker("kv_sessions"),)),
                Shown("Tokens that wait for KV memory", "What queued turns need.", "short",
                      (Query(total("warmroute_queue_memory_missing_tokens"), "missing"),)),
            ),
        ),
        (
            "The prediction and the proxy",
            (
                Shown("Error of the prediction", "Median share of the prompt, by size.", "percentunit",
                      (Query(quantile("0.5", "warmroute_prediction_error_ratio", "size"), "{{size}}"),)),
                Shown("Lag of the event loop", "p99, by what held it.", "s",
                      (Query(quantile("0.99", "warmroute_loop_lag_seconds", "held_by"), "{{held_by}}"),)),
                Shown("Memory of bodies", "Bodies and gathered answers.", "bytes",
                      (Query(total("warmroute_body_memory_bytes"), "bodies"),)),
                Shown("Conditions", "1 while one is raised: docs/reference/conditions.md.", "short",
                      (Query(f"max by (condition, subject) (warmroute_condition{{{OF}}})",
                             "{{condition}} {{subject}}"),)),
            ),
        ),
    ),
)  # fmt: skip

STORES: Final = Board(
    "warmroute-stores",
    "warmroute: ledger, stores, budgets",
    "Whether rows reach the database, and what is left of limits.",
    (
        (
            "Now",
            (
                Shown("Stores up", "1 while all proxies reach the store.", "short",
                      (Query(f"min by (store) (warmroute_store_up{{{OF}}})", "{{store}}"),), "figure"),
                Shown("Unsent rows", "Rows that wait in ledger files for the database.", "short",
                      (Query(total("warmroute_ledger_unsent_rows")),), "figure"),
                Shown("Rows without a journal", "Turns that ended while the journal could not be written.", "short",
                      (Query(total("warmroute_ledger_rows_waiting")),), "figure"),
                Shown("Lost traces", "Not taken by the collector, or dropped.", "short",
                      (Query(f'sum(increase(warmroute_traces_total{{{OF},outcome=~"failed|dropped"}}{RANGE}))'),),
                      "figure"),
            ),
        ),
        (
            "Over time",
            (
                Shown("Rows that wait", "In ledger files, by proxy.", "short",
                      (Query(total("warmroute_ledger_unsent_rows", "instance"), "{{instance}}"),)),
                Shown("Stores", "1 while the store answers.", "short",
                      (Query(f"min by (store, instance) (warmroute_store_up{{{OF}}})", "{{store}} {{instance}}"),)),
                Shown("Left of budgets", "What the store had left, leases taken off.", "currencyUSD",
                      (Query(f"min by (budget, period) (warmroute_budget_left_nanousd{{{OF}}}) / 1e9",
                             "{{budget}} by {{period}}"),)),
                Shown("Leases on budgets", "What proxies may still spend.", "currencyUSD",
                      (Query(f"{total('warmroute_budget_lease_nanousd', 'budget, period')} / 1e9",
                             "{{budget}} by {{period}}"),)),
                Shown("Left of limits by the minute", "Over all proxies.", "short",
                      (Query(f"min by (budget, limit) (warmroute_limit_left{{{OF}}})", "{{budget}} {{limit}}"),)),
                Shown("Traces", "A second, by outcome.", "reqps",
                      (Query(grown("warmroute_traces_total", RATE, "outcome", "rate"), "{{outcome}}"),)),
            ),
        ),
    ),
)  # fmt: skip

BOARDS: Final = (MONEY, OPERATORS, STORES)
