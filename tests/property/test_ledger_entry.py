"""Any sequence of transitions leaves an entry that ended at most once and bills its last attempt."""

import json

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.subjects.entries import opened_entry, settle

from warmroute.contract import receipt as contract
from warmroute_proxy.core.accounting.entry import Entry, Outcome
from warmroute_proxy.core.accounting.entry_steps import TransitionError, dispatch, interrupt
from warmroute_proxy.core.accounting.losses import IndexEstimates, classify
from warmroute_proxy.core.accounting.receipt import ServedBy
from warmroute_proxy.core.accounting.usage import merge_usage

outcomes = st.sampled_from(["completed", "client_left", "engine_error", "cut_off"])


class EntryMachine(RuleBasedStateMachine):
    """Drives one entry, legally and not, beside the plainest model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = opened_entry(session="0123456789abcdef")
        self.rids: list[str] = []
        self.ends: list[bytes] = []

    @precondition(lambda self: not self.ends)
    @rule(worker=st.integers(0, 9))
    def dispatch(self, worker: int) -> None:
        rid = f"rid-{len(self.rids)}"
        dispatch(self.entry, rid, (ServedBy(f"east-a{worker}", 0, "aggregated"),), worker)
        self.rids.append(rid)
        self.last_worker = worker

    @precondition(lambda self: self.rids)
    @rule(data=st.data())
    def a_used_rid_is_refused(self, data: st.DataObject) -> None:
        with pytest.raises(TransitionError):
            dispatch(self.entry, data.draw(st.sampled_from(self.rids)), (), 0)

    @rule(outcome=outcomes, prompt=st.integers(0, 5000), cached=st.integers(-5, 6000))
    def settle(self, outcome: Outcome, prompt: int, cached: int) -> None:
        reported = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
        usage = merge_usage(reported, None, None, 7)
        loss = classify(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            page_size=64,
            estimates=IndexEstimates(0, 0, 0),
            last_turn=None,
            disaggregated=False,
            misreported=usage.misreported_tokens > 0,
        )

        def attempt() -> bytes:
            return bytes(settle(self.entry, reported, loss, usage, outcome=outcome).usage)

        if self.ends or not self.rids:
            with pytest.raises(TransitionError):
                attempt()
        else:
            self.ends.append(attempt())

    @rule()
    def interrupt(self) -> None:
        if self.ends:
            with pytest.raises(TransitionError):
                interrupt(self.entry, 3.0)
        else:
            interrupt(self.entry, 3.0)
            self.ends.append(bytes(self.entry.usage))

    @precondition(lambda self: not self.ends)
    @rule()
    def die_and_come_back(self) -> None:
        self.entry = Entry.read(self.entry.record())

    @invariant()
    def it_is_what_its_history_says(self) -> None:
        if not self.ends:
            assert self.entry.state == ("dispatched" if self.rids else "open")
            return
        (text,) = self.ends
        record = dict(zip(Entry.__struct_fields__, json.loads(self.entry.record()), strict=True))
        usage = record["usage"]
        assert usage == json.loads(text)
        assert contract.check(usage) == []
        assert record["rids"] == self.rids
        assert record["workers"] == usage["warmroute"]["workers"]
        if self.rids:
            assert [worker["id"] for worker in record["workers"]] == [f"east-a{self.last_worker}"]
        for name in ("list_nanousd", "price_nanousd"):
            assert record[name] == usage["warmroute"][name]
        assert record["prompt_tokens"] == usage["prompt_tokens"]
        if record["state"] == "interrupted":
            assert (record["outcome"], record["price_nanousd"], record["status"]) == ("interrupted", 0, 0)


TestEntry = EntryMachine.TestCase
