"""One tenant fills each bounded table that is keyed by a client's word: another tenant's entries stay.

Each `MAX_` name of the proxy and of the contract is listed: as the bound of a table that is divided, which is shown
here, or with the reason why nobody's entries can be driven out there.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest

from tests.unit.core.test_credit import BEFORE
from tests.unit.core.test_credit import turn as moved_turn
from tests.unit.server.test_conversations import CONFIG, SECRETS
from warmroute.contract.conversations import Conversations
from warmroute_proxy.core.cache.affinity import Affinity
from warmroute_proxy.core.cache.occupancy import Evicted, Occupancy
from warmroute_proxy.core.cache.prompt_memory import KnownPrompt, PromptMemory
from warmroute_proxy.core.cache.residents import Residents
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.load import suspects
from warmroute_proxy.core.placement import working_set
from warmroute_proxy.core.placement.credit import Credits
from warmroute_proxy.core.placement.fleet import Worker
from warmroute_proxy.core.placement.histories import Histories
from warmroute_proxy.core.placement.hot_prompts import MIN_BYTES, HotPrompt, HotPrompts
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.placement.working_set import WorkingSet
from warmroute_proxy.core.prompt.chain import Chain
from warmroute_proxy.core.prompt.parts import Head
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue import refused_sessions
from warmroute_proxy.core.queue.programs import Roots
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake import caller as callers
from warmroute_proxy.server.intake.known_body import KnownBodies
from warmroute_proxy.server.intake.parsed_request import CHAT

pytestmark = pytest.mark.uncompiled

ROOM: Final = 40
FEW: Final = 5
MANY: Final = 10 * ROOM

Store = Callable[[str, int], None]
Has = Callable[[str, int], bool]


def number_of(tenant: str, number: int) -> int:
    """A hash that no other tenant has."""
    return (1 if tenant == "bob" else 2) << 32 | number


def void(_found: object) -> None:
    """Nothing, whatever was found."""


def routing(tenant: str, number: int, chain: Chain | None = None) -> RoutingRequest:
    key = number_of(tenant, number)
    return RoutingRequest(
        "m", key, key + (1 << 40), False, None, chain or Chain([key], [4_000]), 0, 1, 9, None, None, True, tenant=tenant
    )


def conversations() -> tuple[Store, Has]:
    table = Conversations("x", max_conversations=ROOM)
    keys: dict[tuple[str, int], str] = {}

    def store(tenant: str, number: int) -> None:
        keys[tenant, number] = table.of(tenant, [number_of(tenant, number)], None, ()).key

    def has(tenant: str, number: int) -> bool:
        tip = number_of(tenant, number)
        return table.of(tenant, [tip, tip + (1 << 50)], None, ()).key == keys[tenant, number]

    return store, has


def affinity(of: str) -> tuple[Store, Has]:
    table = Affinity(ROOM)

    def store(tenant: str, number: int) -> None:
        asked = routing(tenant, number)
        turn = SettledTurn(("a",), "east", 4_000, 1_000, 1, 0, 1, 0, asked.chain.hashes[-1])
        assert asked.session is not None
        table.remember(asked.lineage, asked.chain, turn, asked.session, asked.session + 1, tenant)

    def has(tenant: str, number: int) -> bool:
        asked = routing(tenant, number)
        assert asked.session is not None
        found: dict[str, object] = {
            "lineages": table.last_settled(asked.lineage, asked.chain, 2),
            "threads": table.last_of_thread(asked.session + 1),
            "sessions": table.home(asked.session),
        }
        return found[of] is not None

    return store, has


def homes(of: str) -> tuple[Store, Has]:
    router = Router("east", [Worker("a", "a", 0, "aggregated")])
    table = router.working_set

    def store(tenant: str, number: int) -> None:
        asked = routing(tenant, number)
        ticket = router.dispatched(asked, router.place(asked, 0.0), 0.0)
        router.first_token(ticket, 0.0)
        router.settled(ticket, asked, 0.0, 1_000, 0, 1)

    def has(tenant: str, number: int) -> bool:
        asked = routing(tenant, number)
        return table.knows(asked.lineage) if of == "homes" else asked.session in table._sessions

    assert isinstance(table, WorkingSet)
    return store, has


def residents() -> tuple[Store, Has]:
    table = Residents(ROOM)

    def store(tenant: str, number: int) -> None:
        key = number_of(tenant, number)
        table.sent(key, 10, tenant=tenant)
        table.ended(key, 0.0, computed=True)

    return store, lambda tenant, number: table.tokens_of(number_of(tenant, number)) > 0


def occupancy() -> tuple[Store, Has]:
    table = Occupancy(ROOM)
    return (
        lambda tenant, number: void(table.use(number_of(tenant, number), 10, tenant)),
        lambda tenant, number: table.history(number_of(tenant, number)) is not None,
    )


def histories() -> tuple[Store, Has]:
    table, worker = Histories(ROOM), object()
    return (
        lambda tenant, number: table._note([Evicted(number_of(tenant, number), 0, tenant)], worker),  # type: ignore[arg-type]
        lambda tenant, number: number_of(tenant, number) in table.gone,
    )


def granted_credits() -> tuple[Store, Has]:
    table, turn = Credits(ROOM), moved_turn()

    def grant(tenant: str, number: int) -> int:
        asked = msgspec.structs.replace(turn.routing, lineage=number_of(tenant, number), tenant=tenant)
        return table.grant(msgspec.structs.replace(turn, routing=asked), BEFORE)

    return lambda tenant, number: void(grant(tenant, number)), lambda tenant, number: grant(tenant, number) == 0


def hot_prompts() -> tuple[Store, Has]:
    table = HotPrompts(ROOM * (MIN_BYTES + 96))

    def store(tenant: str, number: int) -> None:
        asked = routing(tenant, number)
        table.keep(HotPrompt(asked, b"x" * MIN_BYTES, "/v1", "salt", None, frozenset(), "a"), 0.0)

    def has(tenant: str, number: int) -> bool:
        return any(each.routing.lineage == number_of(tenant, number) for each in table.hottest(["a"], 0.0))

    return store, has


def prompt_memory() -> tuple[Store, Has]:
    table = PromptMemory(ROOM * 940)

    def store(tenant: str, number: int) -> None:
        asked = routing(tenant, number)
        table.add(asked.lineage, KnownPrompt(asked.lineage, Head((), (), asked.lineage), asked.chain, []), tenant)

    def has(tenant: str, number: int) -> bool:
        asked = routing(tenant, number)
        return table.continued(asked.lineage, asked.lineage, asked.chain.hashes) is not None

    return store, has


def roots() -> tuple[Store, Has]:
    table = Roots(ROOM)
    return (
        lambda tenant, number: table.started(number_of(tenant, number), 1, tenant),
        lambda tenant, number: table.of(number_of(tenant, number)) == 1,
    )


def refused() -> tuple[Store, Has]:
    table = refused_sessions.RefusedSessions()
    return (
        lambda tenant, number: table.keep(number_of(tenant, number), 1.0, 2.0, tenant),
        lambda tenant, number: table.take(number_of(tenant, number), 3.0) == 1.0,
    )


def suspected() -> tuple[Store, Has]:
    table = suspects.Suspects()
    return (
        lambda tenant, number: void(table.process_ended((tenant, number), "e", 1.0, 1.0, bounded=True)),
        lambda tenant, number: table.is_suspect((tenant, number), 2.0),
    )


def known_callers() -> tuple[Store, Has]:
    table = callers.Callers(SECRETS, Conversations("x"), region="r")
    tenants = {"bob": CONFIG.tenants[0], "alice": CONFIG.tenants[1]}
    first: dict[tuple[str, int], object] = {}

    def find(tenant: str, number: int) -> object:
        request = Request(0.0, "POST", CHAT)
        request.headers = {"x-session-id": f"{tenant}-{number}"}
        return table.of(CHAT, tenants[tenant], request.headers)

    def store(tenant: str, number: int) -> None:
        first[tenant, number] = find(tenant, number)

    return store, lambda tenant, number: find(tenant, number) is first[tenant, number]


class _Body:
    """A known body, as far as its table sees it."""

    def __init__(self, tenant: str, number: int) -> None:
        self.parsed = SimpleNamespace(tenant=SimpleNamespace(name=tenant))
        tail = b"%s %d" % (tenant.encode(), number) + b"t" * 2_000
        self.template = SimpleNamespace(tail=tail, tail_bytes=len(tail) - 1)
        self.conversation: Any = SimpleNamespace(raw=b"x" * 1_000, chain=Chain([], []))
        self.is_known = True

    def forget(self) -> None:
        self.is_known = False


def known_conversations() -> tuple[Store, Has]:
    table, bodies = KnownBodies(max_bytes=ROOM * 1_000), {}

    def store(tenant: str, number: int) -> None:
        body: Any = _Body(tenant, number)
        bodies[tenant, number] = body
        table._keep(body, body.conversation)

    return store, lambda tenant, number: bodies[tenant, number].conversation is not None


def long_tails() -> tuple[Store, Has]:
    table, bodies = KnownBodies(max_long_bytes=ROOM * 2_010), {}

    def store(tenant: str, number: int) -> None:
        body: Any = _Body(tenant, number)
        bodies[tenant, number] = body
        table.add(body)

    return store, lambda tenant, number: bodies[tenant, number].is_known


DIVIDED: Final[dict[str, tuple[Callable[[], tuple[Store, Has]], ...]]] = {
    "conversations.MAX_CONVERSATIONS": (conversations,),
    "affinity.MAX_ENTRIES": tuple(
        [lambda of=of: affinity(of) for of in ("lineages", "threads", "sessions")]  # type: ignore[misc]
    ),
    "working_set.MAX_HOMES": (lambda: homes("homes"), lambda: homes("sessions")),
    "residents.MAX_SEATS": (residents,),
    "occupancy.MAX_HISTORIES": (occupancy,),
    "histories.MAX_ENTRIES": (histories,),
    "credit.MAX_GRANTED": (granted_credits,),
    "programs.MAX_ROOTS": (roots,),
    "refused_sessions.MAX_KEPT": (refused,),
    "suspects.MAX_SUSPECTS": (suspected,),
    "caller.MAX_CALLERS": (known_callers,),
    "known_body.MAX_KEPT_BYTES": (known_conversations,),
    "known_body.MAX_LONG_BYTES": (long_tails,),
    "known_body.MAX_LONG": (),
    "conversations.MAX_TOTAL_BYTES": (),
    "hot_prompts: kept_prompt_bytes": (hot_prompts,),
    "prompt_memory: max_bytes": (prompt_memory,),
}
"""By the bound of a table, or where that is a setting, by the name of it."""

NOT_DIVIDED: Final = {
    "a cache: what is lost there is made again from the request in its own time": """
        body_fields.MAX_PLANS body_fields.MAX_PLAN_CHARS body_fields.MAX_PLAN_NAMES choices.MAX_MASKS
        conversation.MAX_KEPT_BYTES engine.MAX_UNSUPPORTED fingerprint.MAX_KEPT_TOOLS fingerprint.MAX_KEPT_TOOL_CUTS
        known.MAX_BYTES known.MAX_ENTRY_BYTES parts.MAX_READ request.MAX_KEPT_BYTES secrets.MAX_CACHED
        tools.MAX_KNOWN_BYTES
    """,
    "divided by tenant by its own rules": """
        earlier_turns.MAX_LOOKED_AT earlier_turns.MAX_ROWS idempotency.MAX_KEYS queries.MAX_OF_OPERATORS
        queries.MAX_OF_TENANT queries.MAX_WAITING token_counts.MAX_AT_ONCE token_counts.MAX_TENANTS
    """,
    "follows what is divided: an entry goes with its home": """
        return_times.MAX_IDLE
    """,
    "of use for seconds, and without it a turn is placed as if it had come alone": """
        forks.MAX_FORKS
    """,
    "requests under way, of which connections and capacity are divided": """
        announcements.MAX_UNDER_WAY kv_blocks.MAX_RUNS kv_blocks.MAX_TAGS markers.MAX_UNSENT replica.MAX_OPEN
        shared_bytes.MAX_MAPPED shared_bytes.MAX_UNREAD waits.MAX_WAITS
    """,
    "the tenants and keys of the operator": """
        access.MAX_ENDED admin_endpoint.MAX_VIEWS bytes_per_token.MAX_MODELS changing.MAX_LISTED config.MAX_PROCESSES
        config_file.MAX_FILE_BYTES config_prices.MAX_BOOKS config_prices.MAX_SOURCE_CHARS config_stores.MAX_USD
        control_plane.MAX_LISTED_DECISIONS fleet_state.MAX_MODELS key_admin.MAX_KEYS key_admin.MAX_LIFETIME_S
        key_admin.MAX_NOTE_CHARS minutes.MAX_TENANTS money.MAX_PRICE_CHARS money.MAX_USD_PER_MTOK
        open_requests.MAX_DECISIONS price_table.MAX_STORED rules.MAX_FOUND rules.MAX_INDENT_CHARS sealing.MAX_KEYS
        secrets.MAX_ACCEPTED secrets.MAX_ENGINE_KEY_CHARS secrets._MAX_FILE_BYTES stored_tenants.MAX_SETTINGS_BYTES
        tenant_admin.MAX_TENANTS view_routes.MAX_KEYS view_routes.MAX_LIMITS view_routes.MAX_TENANTS
        working_set.MAX_GROUPS
    """,
    "of engines and of discovery": """
        addresses.MAX_UNKNOWN blame.MAX_EVIDENCE chunk_shape.MAX_SIZES deletion_costs.MAX_COST discovery.MAX_FILE_BYTES
        discovery.MAX_KEPT_BYTES drain_orders.MAX_BYTES drain_orders.MAX_ORDERS engine_metrics.MAX_RANK_DIGITS
        engine_refusals.MAX_CODE_CHARS engine_refusals.MAX_DEPTH engine_refusals.MAX_PROBLEMS
        engine_refusals.MAX_READ_CHARS engine_refusals.MAX_RETRY_AFTER_S engine_text.MAX_READ_CHARS
        engine_text.MAX_WORDS event_reader.MAX_EVENT_BYTES forks.MAX_LOOKED_AT hand_overs.MAX_ENGINES index.MAX_SLOTS
        kubernetes.MAX_FAILURES kubernetes.MAX_OBJECTS kubernetes_api.MAX_ANSWER_BYTES kubernetes_api.MAX_LINE_BYTES
        kv_blocks.MAX_BLOCKS kv_blocks.MAX_CUTS_PER_BLOCK kv_blocks.MAX_EARLY_BLOCKS kv_events.MAX_BATCHES_AT_ONCE
        kv_events.MAX_BYTES_AT_ONCE kv_events.MAX_MESSAGE_BYTES kv_events.MAX_SOCKETS kv_feed.MAX_BATCH_BYTES
        kv_feed.MAX_LEFT_BYTES kv_feed.MAX_WAITING listener.MAX_WAITING minutes.MAX_WORKERS occupancy.MAX_SHARED
        passthrough.MAX_REST_BYTES passthrough.MAX_SHAPES passthrough.MAX_SIZE_DIGITS
        prefill_leg.MAX_PREFILL_ANSWER_BYTES re_prefill.MAX_ANSWER_BYTES re_prefill.MAX_TRIED seen.MAX_BEHIND
        server_info.MAX_DP_RANKS source.MAX_ENGINES sse.MAX_TEXT_BYTES tunnel.MAX_HEAD_BYTES upstream.MAX_HEAD_BYTES
        upstream.MAX_IDLE wire.MAX_ADDRESSES work.MAX_EVENT_BRACKETS work.MAX_EVENT_VALUES
    """,
    "between processes, proxies and regions": """
        announcements.MAX_IN_POST announcements.MAX_WAITING calls.MAX_CONNECTIONS event_stream.MAX_IN_MESSAGE
        event_stream.MAX_MESSAGE_BYTES event_stream.MAX_SENDERS event_stream.MAX_WAITING event_stream.MAX_WAITING_BYTES
        forward_claim.MAX_NONCES other_proxies.MAX_BESIDE other_proxies.MAX_BESIDE_BYTES
        other_proxies.MAX_BESIDE_IN_POST receipt_voider.MAX_AGE_S receipt_voider.MAX_WAIT_S record.MAX_FRAME_BYTES
        shared_memory.MAX_BYTES store_thread.MAX_WAITING supervisor.MAX_WAIT_S versions.MAX_ANNOUNCED_BYTES
    """,
    "of the ledger, of traces and of records": """
        all_rows.MAX_ROWS all_rows.MAX_S counter_file.MAX_SPANS journal.MAX_WAITING_BYTES ladder_sums.MAX_LADDER_GROUPS
        ladder_sums.MAX_LADDER_ROWS ledger.MAX_FOLD_FAILURES minutes.MAX_SENT_BYTES receipt._MAX_COST_USD
        recording.MAX_RECORD_BYTES recording.MAX_WAITING_BYTES tracing.MAX_BATCH usage_fields.MAX_TOKENS
        usage_sums.MAX_GROUPS usage_sums.MAX_LISTED void_orders.MAX_ORDERS
    """,
    "of one conversation, session or caller that is divided": """
        affinity.MAX_FORKS body_template.MAX_DROP_SETS caller.MAX_KEY_CHARS conversations.MAX_ALIKE
        conversations.MAX_COMPARED known_body.MAX_DECODED_BYTES known_body.MAX_HEAD_BYTES known_body.MAX_KNOWN_BODIES
        known_body.MAX_MARKS known_body.MAX_MEMBERS known_body.MAX_RETURNED known_body.MAX_TAIL_BYTES
        prompt_memory.MAX_PROMPTS working_set.MAX_OF_SESSION
    """,
    "of the client library: it has one client": """
        homes.MAX_HOMES homes.MAX_SYSTEM_CHARS
    """,
    "of one request, body, head, answer or connection": """
        addresses.MAX_ADDRESS_CHARS attempt.MAX_HELD_BYTES body.MAX_NAMES breaks.MAX_CHANGED_LINES breaks.MAX_COMPARED
        breaks.MAX_DATE_CHARS breaks.MAX_LEFT_OUT breaks.MAX_SUMMARY_CHARS call_extras.MAX_EXTRA_CHARS
        call_numbers.MAX_CHOICES canonical.MAX_COMPACTED_BYTES canonical.MAX_PARTS client_events.MAX_STREAM_CHARS
        compactions.MAX_MARKED compactions.MAX_MARKED_BYTES continuation.MAX_STOP_CHARS continuation.MAX_TEXT_BYTES
        conversation_file.MAX_BYTES conversations.MAX_ASKED_BYTES cross_origin._MAX_AGE_S decision.MAX_REASONS
        dispatch_order.MAX_BEGIN dispatch_order.MAX_RECHECKED door.MAX_SHUT errors.MAX_MESSAGE_CHARS errors.MAX_MODELS
        errors.MAX_NAME_CHARS errors.MAX_QUOTED_CHARS fields.MAX_NAMED_FIELDS fields.MAX_NAME_CHARS foreign.MAX_DEPTH
        foreign.MAX_TYPES foreign.MAX_TYPE_CHARS frames.MAX_FRAMES frames.MAX_LATE_BYTES frames.MAX_MESSAGE_BYTES
        header_lines.MAX_LINES header_lines.MAX_LINE_BYTES hot_prompts.MAX_AGE_S http1.MAX_PIPELINED
        idempotency.MAX_KEY_CHARS identity.MAX_AGENT_NAME_BYTES identity.MAX_KEY_BYTES identity.MAX_PRODUCT_CHARS
        identity.MAX_USER_ID_CHARS incoming_body.MAX_PIECES index.MAX_CUTS index.MAX_SHARERS
        inference_request.MAX_ATTEMPTS inference_request.MAX_CHANGES intake.MAX_EXPECTED_OUTPUT_TOKENS
        intake.MAX_PROMPTS item_reading.MAX_CALL_ID_CHARS large_bodies.MAX_READ memory_wait.MAX_LOOKED_AT
        openai_fields.MAX_BIASES openai_fields.MAX_CHOICES openai_fields.MAX_COUNT openai_fields.MAX_PATTERN_CHARS
        openai_fields.MAX_SCHEMA_BYTES openai_fields.MAX_SCHEMA_DEPTH openai_fields.MAX_SCHEMA_PATTERNS
        openai_fields.MAX_SCHEMA_REPEATS openai_fields.MAX_SMALL_BYTES openai_fields.MAX_SMALL_DEPTH
        openai_fields.MAX_STOPS openai_fields.MAX_STOP_CHARS openai_fields.MAX_STOP_TOKEN_IDS
        openai_fields.MAX_SUFFIX_CHARS openai_fields.MAX_TOP_K openai_fields.MAX_TOP_LOGPROBS parts.MAX_LEADING
        parts.MAX_LINES parts.MAX_TOOLS prices.MAX_BUSY raw_json.MAX_NAMES raw_json.MAX_SHOWN_CHARS
        request_reader.MAX_CHUNKS request_reader.MAX_TARGET_BYTES responses_socket.MAX_REFUSED
        responses_socket.MAX_RUNNING responses_socket.MAX_STREAMS responses_socket.MAX_WAITING return_times.MAX_RETURNS
        settings.MAX_INCLUDED shares.MAX_COMPARED tool_grammars.MAX_SCHEMA_VALUES tool_schemas.MAX_SCHEMA_LEVELS
        tools.MAX_SCHEMA_DEPTH usage.MAX_COUNT volatile.MAX_LINE_CHARS volatile.MAX_SECTION_LINES websocket.MAX_OPEN_S
        work.MAX_BRACKETS work.MAX_CALLS work.MAX_COMMAS work.MAX_MEMBERS work.MAX_PARTS work.MAX_STEPS
        work.MAX_TOOLS_BYTES
    """,
}
"""The other bounds, by the reason why nobody's entries can be driven out of a table there."""

ROOT: Final = Path(__file__).parents[2]
PLACES: Final = (
    "proxy/warmroute_proxy/core", "proxy/warmroute_proxy/server", "proxy/warmroute_proxy/dialects",
    "proxy/warmroute_proxy/normalising", "sdk/warmroute/contract",
)  # fmt: skip
CASES: Final = [(name, make) for name, makers in DIVIDED.items() for make in makers]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_set, "MAX_HOMES", ROOM)
    monkeypatch.setattr(refused_sessions, "MAX_KEPT", ROOM)
    monkeypatch.setattr(suspects, "MAX_SUSPECTS", ROOM)
    monkeypatch.setattr(callers, "MAX_CALLERS", ROOM)


@pytest.mark.parametrize(("name", "make"), CASES, ids=[f"{name}-{at}" for at, (name, _) in enumerate(CASES)])
def test_what_a_tenant_has_stays_while_another_one_fills_the_table(
    name: str, make: Callable[[], tuple[Store, Has]]
) -> None:
    store, has = make()
    for number in range(FEW):
        store("bob", number)
    for number in range(MANY):
        store("alice", number)
    assert all(has("bob", number) for number in range(FEW)), name
    assert not has("alice", 0), name


@pytest.mark.parametrize(("name", "make"), CASES, ids=[f"{name}-{at}" for at, (name, _) in enumerate(CASES)])
def test_a_tenant_that_is_alone_may_use_all(name: str, make: Callable[[], tuple[Store, Has]]) -> None:
    store, has = make()
    for number in range(ROOM - 2):
        store("alice", number)
    assert has("alice", 0), name


def bounds() -> Iterator[str]:
    """The `MAX_` names of all modules, each with its module."""
    for place in PLACES:
        for path in (ROOT / place).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                for target in [node.target] if isinstance(node, ast.AnnAssign) else targets:
                    if isinstance(target, ast.Name) and target.id.lstrip("_").startswith("MAX_"):
                        yield f"{path.stem}.{target.id}"


def test_each_bound_is_listed() -> None:
    listed = {name for names in NOT_DIVIDED.values() for name in names.split()} | set(DIVIDED)
    assert set(bounds()) == {name for name in listed if ": " not in name}
