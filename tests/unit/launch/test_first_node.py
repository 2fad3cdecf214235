"""The proxy of a plan runs on its first node alone."""

from pathlib import Path

import pytest
from tests.unit.plan.plans import kind

from warmroute_cli.launch.start import proxy_path
from warmroute_cli.main import parser


@pytest.mark.parametrize("words", [[], ["--proxy-config", "/etc/warmroute/warmroute.toml"]])
def test_no_other_node_starts_a_proxy(words: list[str], tmp_path: Path) -> None:
    """All nodes have one unit, and so one command line but for the number."""
    made = {}
    for node in (0, 1):
        line = ["launch", "/etc/warmroute/plan.toml", "--node", str(node), *words]
        made[node] = proxy_path(parser().parse_args(line), kind("over nodes"), tmp_path)
    assert made[1] is None
    assert made[0] is not None
    assert str(made[0]) == (words[1] if words else "/etc/warmroute/proxy.toml")
