"""Fleets that are split, spread over regions or have lower cache tiers; several proxies; workers that come and go."""

from dataclasses import replace

import pytest

from warmroute_lab.engine.model.model import Role
from warmroute_lab.replay.agents import Agents, agents_trace
from warmroute_lab.replay.fleet import ReplayFleet, ReplayTurn, Store, Worker
from warmroute_lab.replay.production import Production, Proxies
from warmroute_lab.replay.setup import POLICIES, Setup, run
from warmroute_lab.replay.simulation import Ingress, Simulation, WorkerChange, make_scheduler
from warmroute_lab.replay.split import SplitSimulation
from warmroute_lab.replay.trace import Request, Trace, TraceError

pytestmark = pytest.mark.full

BLOCK = 512
PREFILL_S = 1 / 20_000
STEP_S = 0.005
DECODE_STEP_S = STEP_S + 0.015 + 0.0001
AGENTS = Agents(
    sessions=24, starts_within_s=60.0, shared_tokens=1024, own_mean=3000.0, least_turns=8, most_turns=16,
    output_mean=100.0, limit_tokens=60_000,
)  # fmt: skip


@pytest.fixture(scope="module")
def agents() -> Trace:
    return agents_trace(AGENTS, "agents")


def one(tokens: int, output: int) -> Trace:
    request = Request(0, 0.0, None, 0, 1, tokens, output, list(range(tokens // BLOCK)), None)
    return Trace("one", BLOCK, [request], 1, named_sessions=True)


def repeated(times: int, blocks: int, gap_s: float = 20.0) -> Trace:
    """The same prompt again and again."""
    keys = list(range(blocks))
    requests = [Request(at, at * gap_s, None, at, 1, blocks * BLOCK, 5, keys, None) for at in range(times)]
    return Trace("repeated", BLOCK, requests, times, named_sessions=True)


class TestSplit:
    def test_a_first_token_waits_for_prefill_transfer_and_the_next_decode_step(self) -> None:
        result = run(one(4 * BLOCK, 11), Setup(1, 1), "round_robin")
        transfer_s = 0.002 + 4 * BLOCK / 400_000
        assert result.ttft_mean_s == pytest.approx(4 * BLOCK * PREFILL_S + STEP_S + transfer_s)
        assert result.simulated_s == pytest.approx(result.ttft_mean_s + 10 * DECODE_STEP_S)
        assert result.workers == "1:1"

    def test_prompts_do_not_hold_up_the_tokens_of_others(self) -> None:
        # Every second request is a long prompt with a short answer, the others the reverse.
        requests = []
        for at in range(40):
            blocks, output = (32, 2) if at % 2 else (1, 200)
            keys = [at << 10 | block for block in range(blocks)]
            requests.append(Request(at, at * 1.0, None, at, 1, blocks * BLOCK, output, keys, None))
        trace = Trace("mixed", BLOCK, requests, 40, named_sessions=True)
        together, split = (run(trace, setup, "round_robin") for setup in (Setup(1), Setup(1, 1)))
        assert split.tpot_p90_s < 0.021  # a step of a batch of some
        assert together.tpot_p90_s > 1.5 * split.tpot_p90_s

    def test_a_decode_worker_without_room_holds_up_the_prefill(self, agents: Trace) -> None:
        roomy = run(agents, Setup(2, 1, kv_tokens=3_000_000), "warmroute", speed_up=4.0)
        tight = run(agents, Setup(2, 1, kv_tokens=70_000), "warmroute", speed_up=4.0)
        assert tight.ttft_p90_s > 2 * roomy.ttft_p90_s

    def test_what_waits_for_decode_memory_waits_at_the_proxy(self) -> None:
        """A decode engine's report counts the prompts that wait there: else the proxy takes their KV for shared."""

        class Watching(Production):
            waiting = 0

            def started(self, turn: ReplayTurn, now_s: float) -> None:
                self.waiting = max(self.waiting, *(len(each.scheduler.waiting) for each in self.fleet.decodes))
                super().started(turn, now_s)

        roles: list[tuple[Role, int]] = [("prefill", 300_000), ("prefill", 300_000), ("decode", 100_000)]
        workers = [Worker(at, "", role, make_scheduler(role, kv, BLOCK)) for at, (role, kv) in enumerate(roles)]
        trace = agents_trace(replace(AGENTS, output_mean=400.0), "agents")
        policy = Watching(ReplayFleet(workers), trace, Proxies(queue=True))
        SplitSimulation(trace, policy.fleet, policy, 60.0).run()
        assert 0 < policy.waiting < 5

    @pytest.mark.parametrize("policy", POLICIES)
    def test_every_policy_serves_a_split_fleet(self, agents: Trace, policy: str) -> None:
        assert run(agents, Setup(2, 2), policy).requests == len(agents.requests)


class TestRegions:
    RTT_S = 0.08

    def test_sessions_that_name_themselves_go_home_and_the_rest_stay_where_they_come_in(self, agents: Trace) -> None:
        setup = Setup(1, regions=4, rtt_s=self.RTT_S, each_turn=True)
        named, anonymous = (run(agents, replace(setup, naming_share=share), "warmroute") for share in (1.0, 0.0))
        assert named.hit > 0.95 * agents.ceiling()
        assert anonymous.hit < 0.8 * agents.ceiling()
        assert named.workers == "4 x 1"

    def test_a_forwarded_turn_pays_the_round_trip(self) -> None:
        # Nothing is under way when a turn comes, so what its TTFT has beyond the computing is the network.
        requests = [Request(at, at * 30.0, None, 0, at + 1, 40 * BLOCK, 2, list(range(40)), None) for at in range(40)]
        trace = Trace("one session", BLOCK, requests, 1, named_sessions=True)
        setup = Setup(1, regions=2, rtt_s=self.RTT_S, each_turn=True, skip_share=0.1)
        result = run(trace, setup, "warmroute")
        local_s = BLOCK * PREFILL_S + STEP_S
        assert result.ttft_p99_s == pytest.approx(local_s + self.RTT_S)
        assert local_s < result.ttft_mean_s < local_s + self.RTT_S
        at_home = run(trace, replace(setup, each_turn=False), "warmroute")
        assert at_home.ttft_p99_s == pytest.approx(local_s)
        sent_home = run(trace, replace(setup, home_share=1.0), "smg_event")
        assert sent_home.ttft_p99_s == pytest.approx(local_s + self.RTT_S)
        assert sent_home.ttft_mean_s == pytest.approx(result.ttft_mean_s), "its client is where it was"

    def test_a_forwarded_turn_waits_at_the_proxy_of_its_region_not_in_the_engine(self, agents: Trace) -> None:
        class Watching(Production):
            forwarded, in_engines = 0, 0

            def ended(self, turn: ReplayTurn, now_s: float) -> None:
                self.forwarded += len(turn.state) > 1
                self.in_engines += sum(len(worker.scheduler.waiting) for worker in self.fleet.workers)
                super().ended(turn, now_s)

        regions = ("r0", "r1")
        workers = [
            Worker(at, name, "aggregated", make_scheduler("aggregated", 3_000_000, BLOCK, max_running=1))
            for at, name in enumerate(regions)
        ]
        policy = Watching(ReplayFleet(workers), agents, Proxies(queue=True, rtt_s=self.RTT_S))
        Simulation(agents, policy.fleet, policy, ingress=Ingress(regions, each_turn=True, rtt_s=self.RTT_S)).run()
        assert policy.forwarded > len(agents.requests) // 10
        assert not policy.in_engines

    @pytest.mark.parametrize("policy", POLICIES)
    def test_every_policy_serves_regions(self, agents: Trace, policy: str) -> None:
        result = run(agents, Setup(2, regions=2, rtt_s=self.RTT_S, each_turn=True), policy)
        assert result.requests == len(agents.requests)


class TestTiers:
    def test_what_the_device_forgot_the_host_has(self) -> None:
        rows = [
            Request(at, at * 20.0, None, at % 2, 1, 40 * BLOCK, 5, [at % 2 * 1000 + block for block in range(40)], None)
            for at in range(6)
        ]
        trace = Trace("two prompts", BLOCK, rows, 2, named_sessions=True)
        device = run(trace, Setup(1, kv_tokens=45 * BLOCK), "round_robin")
        tiered = run(trace, Setup(1, kv_tokens=45 * BLOCK, host_tokens=200 * BLOCK), "round_robin")
        assert device.hit < 0.1
        assert tiered.hit == pytest.approx(4 * 39 / 240)

    def test_what_one_worker_wrote_to_the_store_another_reads(self) -> None:
        trace = repeated(4, 20)
        alone = run(trace, Setup(4, host_tokens=200 * BLOCK), "round_robin")
        shared = run(trace, Setup(4, host_tokens=200 * BLOCK, store_tokens=200 * BLOCK), "round_robin")
        assert alone.hit == 0
        assert shared.hit == pytest.approx(3 * 19 / 80)

    def test_a_store_forgets_what_was_used_longest_ago(self) -> None:
        store = Store(2)
        store.add(1)
        store.add(2)
        assert 1 in store
        store.add(3)
        assert [key in store for key in (1, 2, 3)] == [True, False, True]

    def test_a_store_without_a_host_tier_is_refused(self, agents: Trace) -> None:
        with pytest.raises(TraceError, match="a store needs a host tier"):
            run(agents, Setup(2, store_tokens=1000), "random")


class TestProxies:
    def test_proxies_that_do_not_hear_of_each_other_scatter_and_kv_events_mend_that(self, agents: Trace) -> None:
        setup = Setup(4, routers=4)
        deaf, hearing = run(agents, setup, "warmroute"), run(agents, setup, "warmroute+events")
        assert deaf.hit < 0.8 * agents.ceiling()
        assert hearing.hit > 0.9 * agents.ceiling()

    def test_processes_that_share_place_as_well_as_one(self, agents: Trace) -> None:
        one = run(agents, Setup(4), "warmroute")
        deaf = run(agents, Setup(4, routers=4), "warmroute")
        four = run(agents, Setup(4, routers=4, share_lag_s=0.005), "warmroute")
        assert deaf.hit < 0.9 * one.hit
        assert four.hit == pytest.approx(one.hit, rel=0.01)
        assert four.ttft_mean_s == pytest.approx(one.ttft_mean_s, rel=0.02)

    def test_events_that_come_too_late_are_of_no_use(self, agents: Trace) -> None:
        late = run(agents, Setup(4, routers=4, event_lag_s=3600.0), "warmroute+events")
        soon = run(agents, Setup(4, routers=4, event_lag_s=0.05), "warmroute+events")
        assert late.hit < 0.8 * soon.hit


class TestQueue:
    def test_who_waits_in_the_proxy_waits_for_less_and_sessions_stay_together(self) -> None:
        draws = [agents_trace(replace(AGENTS, sessions=48, seed=seed), "many agents") for seed in (1, 2, 3)]
        in_engines, in_proxy = (
            [run(agents, Setup(4, max_running=2), name, speed_up=4.0) for agents in draws]
            for name in ("warmroute", "warmroute+queue")
        )
        assert [each.requests for each in in_proxy] == [len(agents.requests) for agents in draws]
        assert sum(each.ttft_mean_s for each in in_proxy) < 0.85 * sum(each.ttft_mean_s for each in in_engines)
        assert sum(each.hit for each in in_proxy) > 0.95 * sum(each.hit for each in in_engines)

    def test_where_engines_have_room_nobody_waits(self, agents: Trace) -> None:
        plain, queue = (run(agents, Setup(4), name) for name in ("warmroute", "warmroute+queue"))
        assert (queue.hit, queue.ttft_mean_s) == (plain.hit, plain.ttft_mean_s)


class TestChanges:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_all_turns_are_served_whoever_comes_or_goes(self, agents: Trace, policy: str) -> None:
        changes = (WorkerChange(60.0, "restart", 0), WorkerChange(90.0, "remove", 1), WorkerChange(120.0, "add", 3))
        result = run(agents, Setup(4, changes=changes), policy)
        assert result.requests == len(agents.requests)

    def test_a_worker_that_restarts_has_lost_its_cache(self) -> None:
        trace = repeated(4, 20)
        steady = run(trace, Setup(1), "round_robin")
        restarted = run(trace, Setup(1, changes=(WorkerChange(30.0, "restart", 0),)), "round_robin")
        assert steady.hit == pytest.approx(3 * 19 / 80)
        assert restarted.hit == pytest.approx(2 * 19 / 80)

    def test_what_was_under_way_is_sent_again_and_its_time_counts_from_the_first_arrival(self) -> None:
        trace = one(20 * BLOCK, 5)
        result = run(trace, Setup(2, changes=(WorkerChange(0.3, "remove", 0),)), "round_robin")
        assert result.retries == 1
        alone_s = 8192 * PREFILL_S + STEP_S + (20 * BLOCK - 8192) * PREFILL_S + STEP_S
        assert result.ttft_mean_s == pytest.approx(0.3 + alone_s)

    def test_an_added_worker_takes_its_share(self, agents: Trace) -> None:
        result = run(agents, Setup(2, changes=(WorkerChange(30.0, "add", 1),)), "least_tokens")
        early = [row for at, row in zip(result.load_times_s, result.load_tokens, strict=True) if at < 30]
        late = [row for at, row in zip(result.load_times_s, result.load_tokens, strict=True) if at > 60]
        assert early
        assert all(row[1] == 0 for row in early)
        assert any(row[1] > 0 for row in late)

    @pytest.mark.parametrize("policy", ["warmroute+working-set", "least_tokens"])
    def test_a_removed_worker_that_restarts_takes_its_share(self, agents: Trace, policy: str) -> None:
        changes = (WorkerChange(30.0, "remove", 1), WorkerChange(60.0, "restart", 1), WorkerChange(61.0, "remove", 0))
        result = run(agents, Setup(2, changes=changes), policy)
        assert any(row[1] for at, row in zip(result.load_times_s, result.load_tokens, strict=True) if at > 61)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ((WorkerChange(1.0, "remove", 7),), "there is no worker 7: they are 0 to 1"),
            (
                (WorkerChange(1e12, "restart", 1),),
                r"1e\+12 s from the first arrival to the last event: at most 1e\+07 s",
            ),
            ((WorkerChange(1.0, "remove", 0), WorkerChange(2.0, "remove", 1)), "without any worker"),
        ],
    )
    def test_impossible_changes_are_refused(
        self, agents: Trace, changes: tuple[WorkerChange, ...], reason: str
    ) -> None:
        with pytest.raises(TraceError, match=reason):
            run(agents, Setup(2, changes=changes), "random")


def test_more_caches_than_the_index_knows_are_refused(agents: Trace) -> None:
    with pytest.raises(TraceError, match="a region of 1201 caches"):
        run(agents, Setup(600, host_tokens=1), "warmroute")


def test_agents_send_back_all_they_sent_and_got(agents: Trace) -> None:
    for before, after in zip(agents.requests, agents.requests[1:], strict=False):
        if after.after is None:
            continue
        full = (before.input_tokens + before.output_tokens) // BLOCK
        assert after.blocks[:full] == before.blocks[:full]
        assert after.input_tokens > before.input_tokens + before.output_tokens
        assert after.input_tokens <= AGENTS.limit_tokens
