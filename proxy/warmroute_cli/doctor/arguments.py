"""The options of `warmroute doctor`."""

import argparse
from pathlib import Path


def add(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("--plan", type=Path, metavar="FILE", help="also check the needs of this plan.toml")
    doctor.add_argument(
        "--node", type=int, default=0, metavar="N", help="number of this node in the plan (%(default)s)"
    )
    doctor.add_argument("--proxy", type=Path, metavar="CONFIG", help="check only this proxy config and its engines")
    doctor.add_argument(
        "--python", default="python3", metavar="FILE", help="Python interpreter with SGLang (%(default)s)"
    )
    doctor.add_argument("--disk", type=Path, metavar="DIR", help="measure the disk of this folder (writes 256 MiB)")
    doctor.add_argument(
        "--fabric", action="store_true", help="measure network cards and NVLink (ib_write_bw, all_reduce_perf)"
    )
    doctor.add_argument(
        "--peer", default="", metavar="HOST", help="fabric: write to this host, where ib_write_bw waits"
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
