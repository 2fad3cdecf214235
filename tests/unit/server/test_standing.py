"""What a client says of its place in the queue: headers of several families, and OpenAI's tiers."""

import json
from dataclasses import replace

import pytest
from tests.unit.server.test_conversations import CONFIG, SECRETS

from warmroute.contract.conversations import Conversations
from warmroute_proxy.core.queue.programs import BACKGROUND, INTERACTIVE, NORMAL
from warmroute_proxy.server.engines.server_info import read_server_info
from warmroute_proxy.server.intake.caller import Caller, Callers
from warmroute_proxy.server.intake.parsed_request import CHAT
from warmroute_proxy.server.intake.standing import NO_STANDING, standing_of
from warmroute_proxy.server.request.dispatch import own_fields

OBJECTIVE = "x-gateway-inference-objective"


@pytest.mark.parametrize(
    ("headers", "priority", "ignored"),
    [
        ({}, NORMAL, ()),
        ({"x-warmroute-priority": "interactive"}, INTERACTIVE, ()),
        ({"x-warmroute-priority": "background"}, BACKGROUND, ()),
        ({"x-warmroute-priority": "9"}, NORMAL, ("x-warmroute-priority",)),
        ({OBJECTIVE: "batch"}, BACKGROUND, ()),
        ({"x-llm-d-inference-objective": "interactive"}, INTERACTIVE, ()),
        ({OBJECTIVE: "food-review"}, NORMAL, (OBJECTIVE,)),
        ({"x-warmroute-priority": "interactive", OBJECTIVE: "batch"}, INTERACTIVE, (OBJECTIVE,)),
        ({"x-slo-ttft-ms": "100", "x-gateway-model-name-rewrite": "m"}, NORMAL,
         ("x-gateway-model-name-rewrite", "x-slo-ttft-ms")),
    ],
)  # fmt: skip
def test_a_priority_is_read_and_what_changes_nothing_is_named(
    headers: dict[str, str], priority: int, ignored: tuple[str, ...]
) -> None:
    found = standing_of(headers)
    assert (found.priority, found.ignored) == (priority, ignored)


@pytest.mark.parametrize(
    ("tier", "priority"),
    [("flex", BACKGROUND), ("priority", INTERACTIVE), ("auto", NORMAL), (None, NORMAL), (7, NORMAL)],
)
def test_a_tier_counts_where_no_header_says_a_priority(tier: object, priority: int) -> None:
    assert NO_STANDING.with_tier(tier).priority == priority
    assert standing_of({"x-warmroute-priority": "normal"}).with_tier(tier).priority == NORMAL


def caller(headers: dict[str, str], tenant: int = 0) -> Caller:
    return Callers(SECRETS, Conversations("x")).of(CHAT, CONFIG.tenants[tenant], headers)


@pytest.mark.parametrize(
    ("headers", "tier", "priority"),
    [
        ({}, None, BACKGROUND),
        ({"x-warmroute-priority": "9"}, None, BACKGROUND),
        ({"x-gateway-inference-fairness-id": "nightly"}, None, BACKGROUND),
        ({"x-warmroute-priority": "interactive"}, None, INTERACTIVE),
        ({"x-warmroute-priority": "normal"}, None, NORMAL),
        ({OBJECTIVE: "priority"}, "flex", INTERACTIVE),
        ({}, "priority", INTERACTIVE),
        ({}, "auto", BACKGROUND),
    ],
)
def test_the_default_of_a_tenant_counts_if_its_client_states_no_priority(
    headers: dict[str, str], tier: str | None, priority: int
) -> None:
    tenant = replace(CONFIG.tenants[0], default_priority="background")
    found = Callers(SECRETS, Conversations("x")).of(CHAT, tenant, headers)
    assert found.standing.with_tier(tier).priority == priority


def test_a_named_program_counts_within_its_tenant_alone() -> None:
    headers = {"x-gateway-inference-fairness-id": "nightly"}
    one, same, other = caller(headers), caller(headers | {"x-session-id": "s"}), caller(headers, 2)
    assert one.standing.program_key == same.standing.program_key is not None
    assert one.standing.program_key != other.standing.program_key


def test_only_a_header_that_names_a_session_makes_its_sub_agents_of_that_program() -> None:
    child = caller({"x-session-id": "child", "x-parent-session-id": "root"})
    assert child.standing.parent == caller({"x-session-id": "root"}).session_key
    agent = caller({"x-claude-code-session-id": "root", "x-claude-code-parent-agent-id": "a1"})
    assert agent.standing.parent is None


@pytest.mark.parametrize(
    ("reported", "sign"),
    [({}, 0), ({"enable_priority_scheduling": True}, 1),
     ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}, -1)],
)  # fmt: skip
def test_an_engine_with_priorities_says_which_goes_first(reported: dict[str, bool], sign: int) -> None:
    info = read_server_info(json.dumps({"dp_size": 1, "page_size": 1, **reported}).encode(), CONFIG.engines[0], "h")
    assert info is not None
    assert info.priority_sign == sign


def test_a_priority_is_sent_where_there_is_one() -> None:
    assert '"priority"' not in own_fields("r", "s", tagged=False)
    assert own_fields("r", "s", tagged=True, priority=-1).endswith('"session_id":"r","priority":-1')
