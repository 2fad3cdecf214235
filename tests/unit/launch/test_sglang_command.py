"""The command line of SGLang on a CPU."""

from pathlib import Path

from warmroute_backend.sglang.command import Ports, arguments
from warmroute_backend.sglang.installation import Installation


def test_a_single_server_has_tiers_below_its_pool_unless_it_is_told_not_to() -> None:
    found = Installation(Path("python"), Path("launcher"), Path("model"))
    ports = Ports(1, 2, 3, 4, 5)
    with_tiers, without = (arguments("aggregated", ports, found, tiers=tiers) for tiers in (True, False))
    assert "--enable-hierarchical-cache" in with_tiers
    assert with_tiers[: len(without)] == without
    assert "--hicache-storage-backend" not in without
