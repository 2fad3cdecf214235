"""The options of `warmroute plan`."""

import argparse
from pathlib import Path
from typing import Final

from warmroute_backend.plan.words import ALL_TO_ALLS, CACHE_DIR, KV_TYPES, OBJECTIVES, RDMA_RESOURCE, STORAGES
from warmroute_cli.arguments import above_zero, count, number, wants

_share: Final = number("a share between 0 and 1", lambda value: 0 <= value < 1)


def add(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("--model", metavar="NAME|DIR", help="a known model, or the folder of a checkpoint")
    plan.add_argument("--gpus", metavar="NxGPU[,...]", help="8xH200, 2x8xH200 for two nodes; several are compared")
    plan.add_argument("--check", type=Path, metavar="FILE", help="only check an edited plan.toml")
    plan.add_argument("--list", action="store_true", help="print known models and GPUs, and exit")
    plan.add_argument("--objective", choices=OBJECTIVES, default="latency", help="goal of the plan (%(default)s)")
    _add_traffic(plan.add_argument_group("traffic"))
    _add_targets(plan.add_argument_group("targets of the traffic"))
    _add_choices(plan.add_argument_group("choices (default: chosen by the planner)"))
    _add_site(plan.add_argument_group("the site"))
    output = plan.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the plan as JSON instead of a page")
    output.add_argument("--out", type=Path, metavar="DIR", help="write all files of the deployment to DIR")


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--trace", type=Path, metavar="FILE", help="trace in a format of `warmroute replay`")
    group.add_argument("--input", type=count, metavar="TOKENS", help="tokens per prompt")
    group.add_argument("--output", type=count, metavar="TOKENS", help="tokens per answer")
    group.add_argument("--requests-per-s", type=above_zero, default=1.0, metavar="N", help="rate (%(default)g)")
    group.add_argument(
        "--cached", type=_share, default=0.9, metavar="SHARE", help="cached share of a prompt (%(default)g)"
    )


def _add_targets(group: argparse._ArgumentGroup) -> None:
    for percentile in (50, 90, 99):
        group.add_argument(
            f"--ttft-p{percentile}", type=latency, metavar="TIME", help="time to the first token, such as 2s"
        )
    group.add_argument(
        "--time-per-token",
        dest="token_p90",
        type=latency,
        metavar="TIME",
        help="p90 time per token after the first, such as 30ms",
    )
    for percentile in (50, 99):
        group.add_argument(f"--time-per-token-p{percentile}", dest=f"token_p{percentile}", type=latency, metavar="TIME")
    group.add_argument("--goodput", action="store_true", help="plan for the most requests/s within the targets")
    group.add_argument(
        "--gpu-hour", type=gpu_hours, metavar="USD|GPU=USD,...", help="price of a GPU hour; prints token prices"
    )
    group.add_argument(
        "--margin", type=_share, default=0.0, metavar="SHARE", help="margin on token prices (%(default)g)"
    )


def _add_choices(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--context", type=count, metavar="TOKENS", help="longest request of an engine")
    group.add_argument("--pd", type=division, metavar="P+D|off", help="GPUs of prefill and decode, such as 4+4")
    group.add_argument("--tp", type=count, metavar="N", help="GPUs of an engine")
    group.add_argument("--attention-dp", type=groups, metavar="N|P+D", help="attention groups of an engine, or of both")
    group.add_argument("--dcp", type=count, metavar="N", help="GPUs that divide latent KV (--dcp-size)")
    group.add_argument("--pp", type=count, metavar="N", help="pipeline stages of engines that compute prompts")
    group.add_argument("--all-to-all", choices=ALL_TO_ALLS, help="exchange of expert tokens (--moe-a2a-backend)")
    group.add_argument("--chunk", type=count, metavar="TOKENS", help="--chunked-prefill-size")
    group.add_argument("--kv-dtype", choices=KV_TYPES)
    group.add_argument("--mem-fraction", type=_share, metavar="SHARE", help="--mem-fraction-static")
    group.add_argument("--swa-ratio", type=_share, metavar="SHARE", help="--swa-full-tokens-ratio")
    group.add_argument("--hicache", choices=("on", "off"))
    group.add_argument("--storage", choices=STORAGES, help="storage tier of HiCache")
    group.add_argument(
        "--store-disk-gb", type=count, default=0, metavar="GB", help="of each node's disk, for the Mooncake store"
    )
    group.add_argument("--lmcache", action="store_true", help="LMCache instead of HiCache")
    group.add_argument("--speculation", choices=("on", "off"))
    group.add_argument("--draft-steps", type=count, metavar="N", help="drafts of a step (--speculative-num-steps)")


def _add_site(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--hardware", type=Path, metavar="FILE", help="TOML with [[gpu]] tables")
    group.add_argument("--measured", type=Path, metavar="FILE", help="what `python -m scripts.gpu` has measured")
    group.add_argument("--served-name", metavar="NAME", help="model name for clients")
    group.add_argument("--hosts", nargs="+", default=[], metavar="HOST", help="addresses of the nodes")
    group.add_argument("--ib-device", default="", metavar="NAMES", help="network cards, comma-separated or a JSON map")
    group.add_argument("--image", metavar="IMAGE", help="image of the engines in Kubernetes")
    group.add_argument(
        "--rdma-resource",
        default=RDMA_RESOURCE,
        metavar="NAME",
        help="Kubernetes resource of network cards (%(default)s); '': privileged pods",
    )
    group.add_argument("--token-secret", default="", metavar="NAME", help="Kubernetes secret with a Hugging Face token")
    group.add_argument("--cache-dir", default=CACHE_DIR, metavar="DIR", help="cache folder on each node (%(default)s)")
    group.add_argument("--namespace", default="default", help="Kubernetes namespace (%(default)s)")
    group.add_argument(
        "--env", nargs="+", type=variable, default=[], metavar="NAME=VALUE", help="environment of each engine"
    )


ANY_GPU = ""


@wants("USD of a GPU hour such as 2.5, or of each kind such as H200=3,B200=5")
def gpu_hours(text: str) -> dict[str, float]:
    """Name of a GPU -> USD per hour; `ANY_GPU` -> a price that holds for all GPUs."""
    if "=" not in text:
        return {ANY_GPU: above_zero(text)}
    pairs = [each.partition("=") for each in text.split(",")]
    return {name.strip().upper(): above_zero(usd) for name, _, usd in pairs}


@wants("GPUs of prefill and decode such as 4+4, or off")
def division(text: str) -> tuple[int, int]:
    """Two counts, or (0, 0) for `off`."""
    if text == "off":
        return 0, 0
    prefills, decodes = map(int, text.split("+"))
    if prefills < 1 or decodes < 1:
        raise ValueError(text)
    return prefills, decodes


@wants("a number of attention groups such as 8, or two such as 8+4")
def groups(text: str) -> tuple[int, int | None]:
    first, plus, second = text.partition("+")
    found = int(first), int(second) if plus else None
    if min(found[0], found[1] or 1) < 1:
        raise ValueError(text)
    return found


@wants("a time such as 2s or 30ms")
def latency(text: str) -> float:
    """Read a time. Returns seconds."""
    value, factor = (text[:-2], 0.001) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    return above_zero(value) * factor


@wants("NAME=VALUE")
def variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise ValueError(text)
    return name, value
