"""The inputs of the planner. All inputs except the model and the GPUs have a default or are chosen by the planner."""

from dataclasses import dataclass, field

from warmroute_backend.plan.deployment import Site, Traffic
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import Cluster
from warmroute_backend.plan.memory import takes_deepep, takes_stages
from warmroute_backend.plan.model import CacheKind, Model
from warmroute_backend.plan.words import AllToAll, KvType, Objective, Storage

AGGREGATED = (0, 0)
WHOLE_GROUP = 0
"""The value of `dcp` for all GPUs of an attention group."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The inputs of a plan. `split`: GPUs of prefill and of decode, (0, 0) for aggregated engines, None to let the
    planner choose. For `hicache`, `speculation` and `window_ratio`, None also leaves the choice to the planner.
    `lmcache`: LMCache in place of HiCache. `compared`: the traffic was simulated on other divisions and groups of these
    GPUs, too, and this request was the best."""

    model: Model
    cluster: Cluster
    objective: Objective = "latency"
    traffic: Traffic | None = None
    context_tokens: int | None = None
    kv_type: KvType | None = None
    split: tuple[int, int] | None = None
    attention_dp: int | None = None
    decode_dp: int | None = None
    """Attention groups of decode engines; None: `attention_dp`."""
    tp: int | None = None
    """GPUs of an engine."""
    dcp: int | None = None
    """The number of GPUs that divide the KV of each sequence, or `WHOLE_GROUP`. None: the KV is not divided. Prefill
    engines never divide the KV.
    """
    pp: int | None = None
    """Pipeline stages of an engine that computes prompts. Engines that only decode have one stage."""
    all_to_all: AllToAll | None = None
    """How tokens reach their experts. None: SGLang's collectives; a search with given traffic then also tries DeepEP
    over several nodes."""
    chunk_tokens: int | None = None
    fraction: float | None = None
    most_fraction: bool = False
    """Whether `--mem-fraction-static` is the largest that leaves what SGLang reserves, without more for a vision tower.
    Ignored if a fraction is given.
    """
    hicache: bool | None = None
    speculation: bool | None = None
    draft_steps: int | None = None
    """The number of draft tokens that one step verifies; None: three."""
    storage: Storage | None = None
    lmcache: bool = False
    compared: bool = False
    window_ratio: float | None = None
    model_name: str = ""
    site: Site = field(default_factory=Site)

    @property
    def divides_kv(self) -> bool:
        """Whether the KV of a sequence is divided among GPUs."""
        return self.dcp not in {None, 1}

    @property
    def is_even(self) -> bool:
        """Whether the GPUs of prefill and of decode divide evenly into engines of the requested size. Only engines that
        compute prompts have several stages.
        """
        sizes = [(self.tp or 1) * (self.pp or 1), self.tp or 1]
        return not any(gpus % size for gpus, size in zip(self._sides(), sizes, strict=False))

    def _sides(self) -> list[int]:
        return [gpus for gpus in self.split or () if gpus] or [self.cluster.gpus]

    @property
    def has_stages(self) -> bool:
        return (self.pp or 1) > 1

    def checked(self) -> "PlanRequest":
        """The request itself, if its parts fit together. Raises PlanError."""
        model, traffic = self.model, self.traffic
        if self.context_tokens is not None and self.context_tokens > model.context_tokens:
            raise PlanError(
                f"{model.name} has a context of {model.context_tokens:,} tokens, not {self.context_tokens:,}.",
                [f"--context {model.context_tokens}"],
            )
        if traffic is not None and traffic.input_tokens + traffic.output_tokens > (
            self.context_tokens or model.context_tokens
        ):
            raise PlanError(
                f"requests of {traffic.input_tokens:,} + {traffic.output_tokens:,} tokens exceed the context of "
                f"{self.context_tokens or model.context_tokens:,}.",
                ["shorter requests", *(["a longer --context"] if self.context_tokens else [])],
            )
        self._check_division()
        if not self.is_even:
            text = " + ".join(map(str, self._sides()))
            engine = (self.tp or 1) * (self.pp or 1)
            raise PlanError(f"engines of {engine} GPUs do not divide {text}: some would be unused.")
        if self.decode_dp is not None and self.split == AGGREGATED:
            raise PlanError("two numbers of attention groups are those of prefill and of decode.", ["--pd 4+4"])
        if self.split is not None and sum(self.split) > self.cluster.gpus:
            raise PlanError(f"{self.split[0]}+{self.split[1]} GPUs are more than {self.cluster}.")
        if self.split is not None and self.split != AGGREGATED and 0 in self.split:
            raise PlanError("a split has GPUs on both sides.", ["--pd 4+4", "--pd off"])
        return self

    def _check_division(self) -> None:
        """Raises PlanError if two of stages, DeepEP, divided KV and drafts exclude each other, or if the model excludes
        one of them.
        """
        model = self.model
        if self.divides_kv and model.kind is not CacheKind.LATENT:
            raise PlanError(f"--dcp divides the KV of latent attention, which {model.name} does not have.")
        if self.divides_kv and (self.speculation or self.lmcache):
            raise PlanError("SGLang runs --dcp without drafts and without LMCache.", ["--speculation off"])
        if self.has_stages and (self.speculation or self.lmcache or self.divides_kv or self.all_to_all == "deepep"):
            raise PlanError(
                "plans have --pp without drafts, LMCache, --dcp and DeepEP: SGLang has them apart, or only by halves.",
                ["--speculation off"],
            )
        if self.has_stages and not takes_stages(model):
            raise PlanError(f"SGLang's class of {model.name} has no pipeline stages.", ["a plan without --pp"])
        if self.draft_steps is not None and (self.speculation is False or self.divides_kv or self.has_stages):
            raise PlanError("--draft-steps is of plans with drafts, and so without --speculation off, --dcp and --pp.")
        if self.all_to_all == "deepep" and not takes_deepep(self.cluster.gpu, model):
            raise PlanError(f"DeepEP takes tokens to experts of fp8 on NVIDIA's GPUs, which {model.name} lacks here.")
