"""What steers an engine is in the table, and nothing that identifies a client is on the list of what passes."""

import subprocess
import sys

import pytest
from tests.machine import seconds

from warmroute.contract import identity, steering

DESIGNED = (
    "cache_salt extra_key bootstrap_host bootstrap_port bootstrap_room rid routed_dp_rank data_parallel_rank "
    "disagg_prefill_dp_rank priority session_params session_id kv_hints input_ids custom_logit_processor lora_path"
)


@pytest.mark.parametrize("field", DESIGNED.split())
def test_every_steering_field_is_removed_or_refused(field: str) -> None:
    assert (field in steering.REMOVED_FIELDS) != (field in steering.REFUSED_FIELDS)


def test_session_fields_never_reach_an_engine_in_clear() -> None:
    assert set(identity.SESSION_FIELDS) - {"metadata"} <= steering.REMOVED_FIELDS


def test_no_forwarded_header_identifies_or_authenticates() -> None:
    for name in steering.FORWARDED_HEADERS:
        assert name not in identity.IDENTITY_HEADERS
    assert not {"authorization", "cookie", "accept-encoding"} & steering.FORWARDED_HEADERS


@pytest.mark.parametrize("value", ["a", "req-1_2.3:4", "x" * 128])
def test_request_ids_that_pass(value: str) -> None:
    assert steering.well_formed_request_id(value)


@pytest.mark.parametrize("value", ["", "x" * 129, "a b", "a\n", "é", "a;b", '"'])
def test_request_ids_that_do_not(value: str) -> None:
    assert not steering.well_formed_request_id(value)


def test_the_contract_loads_nothing_of_the_proxy_and_no_openai() -> None:
    code = (
        "import sys, warmroute.contract.identity, warmroute.contract.receipt, warmroute.contract.steering;"
        "unwanted = ('openai', 'httpx', 'httpx2', 'msgspec', 'warmroute_proxy');"
        "print([m for m in sys.modules if m.split('.')[0] in unwanted])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=seconds(30))
    assert done.stdout.strip() == "[]"
