"""`processes = "auto"` follows the CPU quota of a container."""

import os
from pathlib import Path

import pytest

from warmroute_proxy.server.base.config_file import usable_cores

ALL = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", ALL), ("50000 100000", 1), ("150000 100000", min(2, ALL)), ("9900000 100000", ALL), ("junk", ALL)],
)
def test_a_quota_counts_as_whole_cores(quota: str, cores: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores(tmp_path) == cores


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == ALL
    (tmp_path / "cpu").mkdir()
    for name, value in (("quota", "50000"), ("period", "100000")):
        (tmp_path / f"cpu/cpu.cfs_{name}_us").write_text(value)
    assert usable_cores(tmp_path) == 1
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1")
    assert usable_cores(tmp_path) == ALL
