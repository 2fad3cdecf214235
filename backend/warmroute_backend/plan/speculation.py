"""Draft models: the draft model of a model, how many drafts are accepted, and up to which batch size drafts pay.

A step with drafts verifies `draft_tokens` tokens for each sequence and brings `accept_length` tokens. Drafts pay while
accept_length * step(batch) > verify(batch) + draft, by the roofline of `speed.py`. In models with experts, more tokens
in a step also read more weights. Large batches are bound by computing, so rejected drafts cost as much as accepted
tokens.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from warmroute_backend.plan.deployment import Speculation
from warmroute_backend.plan.hardware import Gpu
from warmroute_backend.plan.kernels import layer_s
from warmroute_backend.plan.memory import EngineShape
from warmroute_backend.plan.model import Model
from warmroute_backend.plan.models import names_of
from warmroute_backend.plan.speed import Load, decode_step_s

LARGEST_BATCH: Final = 1024
PUBLISHED_STEPS: Final = 3
"""The number of draft steps with which the accept lengths of `DRAFTS` were measured."""

_HALVINGS: Final = 40
MTP: Final = "built-in MTP layer"


class Draft(NamedTuple):
    """A draft model. `parameters_bytes`: bytes of its weights; `layers`: number of its layers with KV; `accept_length`:
    tokens that 3 steps with one candidate each bring.
    """

    algorithm: str
    path: str | None
    layers: int
    parameters_bytes: int
    accept_length: float
    source: str


DRAFTS: Final[dict[str, Draft]] = {
    # MT-Bench 2.94 with 3 steps, top-k 1 (model card; SGLang ships Eagle3DeepseekV2ForCausalLM for it).
    "kimi-k2.5": Draft(
        "EAGLE3", "lightseekorg/kimi-k2.5-eagle3-mla", 1, 3 * 10**9, 2.94, "MT-Bench, card of kimi-k2.5-eagle3-mla"
    ),
    "kimi-k2.5-nvfp4": Draft(
        "EAGLE3", "lightseekorg/kimi-k2.5-eagle3-mla", 1, 3 * 10**9, 2.94,
        "MT-Bench with the int4 target, card of kimi-k2.5-eagle3-mla",
    ),
    "kimi-k2.6": Draft(
        "EAGLE3", "lightseekorg/kimi-k2.6-eagle3-mla", 1, 3 * 10**9, 2.62, "MT-Bench, card of kimi-k2.6-eagle3-mla"
    ),
    "kimi-k2-instruct": Draft(
        "EAGLE3", "AQ-MedAI/Kimi-K2-Instruct-eagle3", 1, 3 * 10**9, 3.17, "card of Kimi-K2-Instruct-eagle3"
    ),
    "gpt-oss-120b": Draft(
        "EAGLE3", "nvidia/gpt-oss-120b-Eagle3", 1, 2 * 10**9, 2.0, "assumed: its card names no accept length"
    ),
    "llama-3.3-70b": Draft(
        "EAGLE3", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", 1, 3 * 10**9, 2.0,
        "assumed: 5.6 is published for trees of drafts, not for a chain of three (EAGLE-3, arXiv 2503.01840)",
    ),
    "llama-4-scout": Draft(
        "EAGLE3", "lmsys/sglang-EAGLE3-Llama-4-Scout-17B-16E-Instruct-v1", 1, 2 * 10**9, 2.0,
        "assumed: its card names no accept length",
    ),
}  # fmt: skip

_MTP_ACCEPT_LENGTH: Final = 2.44
"""The accept length of DeepSeek-R1 with three steps of its MTP layer (lmsys.org/blog/2025-07-17-mtp)."""


def draft_of(model: Model) -> Draft | None:
    """A model's draft model; None if none is known."""
    if model.mtp_layers:
        return Draft("EAGLE", None, model.mtp_layers, 0, _MTP_ACCEPT_LENGTH, f"{MTP}, lmsys.org/blog/2025-07-17-mtp")
    found = {DRAFTS.get(name) for name in names_of(model)}
    return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=64)  # a plan asks for it at each batch size
def accepted_tokens(draft: Draft, steps: int) -> float:
    """Tokens that a verified step of `steps` drafts brings, with one candidate each. A draft can be accepted only if
    the drafts before it are. Each draft is assumed to be accepted with the same probability: the one with which three
    steps bring the published number."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        low, high = (share, high) if _chain(share, PUBLISHED_STEPS) < draft.accept_length else (low, share)
    return round(_chain(low, steps), 2)


def _chain(share: float, steps: int) -> float:
    return sum(share**step for step in range(steps + 1))


def speculation(
    gpu: Gpu, model: Model, shape: EngineShape, load: Load, draft: Draft, steps: int = PUBLISHED_STEPS
) -> Speculation:
    """The settings of speculation, with one candidate in each step. SGLang's default is three steps for all models but
    Llama (`_auto_choose_speculative_params`).
    """
    topk = 1
    return Speculation(
        draft.algorithm, steps, topk, steps + 1, accepted_tokens(draft, steps), draft.source,
        largest_batch(gpu, model, shape, load, draft, steps), path=draft.path,
    )  # fmt: skip


def speed_up(
    gpu: Gpu, model: Model, shape: EngineShape, load: Load, draft: Draft, batch: float, steps: int = PUBLISHED_STEPS
) -> float:
    """Tokens a second with drafts, divided by tokens a second without drafts."""
    plain = decode_step_s(gpu, model, shape, load, batch)
    verify = decode_step_s(gpu, model, shape, load, batch, steps + 1)
    drafting = steps * draft.layers * layer_s(gpu, model) + steps * draft.layers / model.layers * plain
    return accepted_tokens(draft, steps) * plain / (verify + drafting)


def largest_batch(
    gpu: Gpu, model: Model, shape: EngineShape, load: Load, draft: Draft, steps: int = PUBLISHED_STEPS
) -> int:
    """The largest number of sequences in a rank for which drafts pay; 0 if they never do."""
    low, high = 0, LARGEST_BATCH
    while low < high:
        middle = (low + high + 1) // 2
        if speed_up(gpu, model, shape, load, draft, middle, steps) > 1:
            low = middle
        else:
            high = middle - 1
    return low
