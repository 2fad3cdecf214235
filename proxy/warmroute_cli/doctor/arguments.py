"""The options of `warmroute doctor`."""

import argparse
from pathlib import Path


def add(doctor: argparse.ArgumentParser) -> None:
    """Add them."""
    doctor.add_argument("--plan", type=Path, metavar="FILE", help="also what is missing here for this plan.toml")
    doctor.add_argument("--node", type=int, default=0, metavar="N", help="which node of the plan this is (%(default)s)")
    doctor.add_argument(
        "--proxy", type=Path, metavar="CONFIG", help="only this configuration of a proxy, and its engines"
    )
    doctor.add_argument("--python", default="python3", metavar="FILE", help="the Python that has SGLang (%(default)s)")
    doctor.add_argument("--disk", type=Path, metavar="DIR", help="measure this folder (256 MiB are written there)")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
