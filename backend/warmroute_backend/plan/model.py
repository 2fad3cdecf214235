"""The shape of a model, as far as memory and speed depend on it, read from the `config.json` of its checkpoint.

A model can be planned only if a formula of `cache.py` covers the KV cache of its family. For any other architecture,
`model_from_config` raises PlanError with its name, or, with `flags_only`, returns a `Model` for which only flags can be
checked. A capacity is never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from warmroute_backend.plan.errors import PlanError

Config = Mapping[str, Any]


class CacheKind(Enum):
    """How the attention of a family keeps its KV."""

    LATENT = "latent"
    """MLA: one latent vector for each token and layer, equal on every GPU of an attention group."""
    SPARSE = "sparse"
    """DeepSeek sparse attention: as MLA, plus the keys of an indexer that selects tokens."""
    HEADS = "heads"
    """MHA or GQA: keys and values of each KV head, divided among GPUs."""
    WINDOW = "window"
    """As HEADS, but some layers see only a window or a chunk of the context."""
    COMPRESSED = "compressed"
    """DeepSeek V4: in each layer a window of latent vectors, and in some layers one vector for 4 tokens (with an
    indexer) or for 128.
    """
    UNKNOWN = "unknown"
    """No formula covers the cache, so memory and speed are not computed."""


ARCHITECTURES: Final[Mapping[str, CacheKind]] = {
    "DeepseekV3ForCausalLM": CacheKind.LATENT,
    "DeepseekV32ForCausalLM": CacheKind.SPARSE,
    "DeepseekV4ForCausalLM": CacheKind.COMPRESSED,
    "Glm4MoeForCausalLM": CacheKind.HEADS,
    "GlmMoeDsaForCausalLM": CacheKind.SPARSE,
    "GptOssForCausalLM": CacheKind.WINDOW,
    "KimiK25ForConditionalGeneration": CacheKind.LATENT,
    "Llama4ForConditionalGeneration": CacheKind.WINDOW,
    "LlamaForCausalLM": CacheKind.HEADS,
    "MiniMaxM2ForCausalLM": CacheKind.HEADS,
    "Qwen2ForCausalLM": CacheKind.HEADS,
    "Qwen3ForCausalLM": CacheKind.HEADS,
    "Qwen3MoeForCausalLM": CacheKind.HEADS,
}

REFUSED: Final[Mapping[str, str]] = {
    "KimiLinearForCausalLM": "hybrid (linear attention)",
    "Qwen3NextForCausalLM": "hybrid (linear attention)",
    "Qwen3_5ForConditionalGeneration": "hybrid (linear attention)",
    "Qwen3_5MoeForConditionalGeneration": "hybrid (linear attention)",
}
"""Architecture whose cache no formula covers -> its kind (`sglang/srt/model_executor/pool_configurator.py`)."""

_EXPERT_FORMATS: Final[Mapping[str, float]] = {
    "bf16": 2.0,
    "fp4": 0.5 + 1 / 32,
    "fp8": 1.0 + 4 / (128 * 128),
    "int4": 0.5 + 2 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
"""Format -> bytes of a parameter with its share of a scale. A scale is fp32 for 128x128 parameters, bf16 for 32, e8m0
for 32, or e4m3 for 16."""

_DENSE_FORMATS: Final[Mapping[str, float]] = {
    **dict.fromkeys(_EXPERT_FORMATS, 2.0),
    **dict.fromkeys(("fp8", "fp4"), _EXPERT_FORMATS["fp8"]),
}
"""Format of experts -> bytes of a parameter outside of experts. For "fp8" and "fp4" the other weights are in fp8.
"fp4" is DeepSeek V4's format, with experts as in mxfp4.
"""


@dataclass(frozen=True, slots=True)
class Model:
    """A model. Widths are numbers of values; `expert_width` and `dense_width` are widths of a feed-forward block.

    `checkpoint_bytes` is the size of all tensors (the index's `total_size`). A dimension that a family lacks is 0.
    """

    name: str
    path: str
    architecture: str
    kind: CacheKind
    weight_format: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_tokens: int
    dense_width: int
    checkpoint_bytes: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    nope_dim: int = 0
    v_dim: int = 0
    index_dim: int = 0
    index_heads: int = 0
    indexed_layers: int = 0
    index_topk: int = 0
    experts: int = 0
    experts_active: int = 0
    shared_experts: int = 0
    expert_width: int = 0
    dense_layers: int = 0
    window_layers: int = 0
    window_tokens: int = 0
    quarter_layers: int = 0
    """Layers with one vector of KV for 4 tokens, and an indexer that selects vectors."""
    coarse_layers: int = 0
    """Layers with one vector of KV for 128 tokens."""
    o_rank: int = 0
    o_groups: int = 0
    mtp_layers: int = 0
    vision_layers: int = 0
    vision_width: int = 0
    tied: bool = False

    @property
    def expert_bytes_each(self) -> float:
        return _EXPERT_FORMATS[self.weight_format]

    @property
    def dense_bytes_each(self) -> float:
        """Bytes of one parameter that belongs to no expert."""
        return _DENSE_FORMATS[self.weight_format]

    def stage(self, stages: int) -> "Model":
        """The model reduced to the layers of the largest of `stages` pipeline stages, also in the number of layers of
        each kind (`get_pp_indices`, `sglang/srt/distributed/utils.py:110`)."""
        if stages == 1:
            return self
        return replace(
            self,
            layers=-(-self.layers // stages),
            indexed_layers=-(-self.indexed_layers // stages),
            window_layers=self.window_layers // stages,
            quarter_layers=-(-self.quarter_layers // stages),
            coarse_layers=-(-self.coarse_layers // stages),
        )

    @property
    def is_latent(self) -> bool:
        """Whether the cache is equal on every GPU of an attention group, as MLA's is."""
        return self.kind in {CacheKind.LATENT, CacheKind.SPARSE, CacheKind.COMPRESSED}

    @property
    def is_multimodal(self) -> bool:
        """Whether SGLang serves images by default. Llama 4 serves only text without `--enable-multimodal`."""
        return self.vision_layers > 0 and not self.architecture.startswith("Llama4")


def model_from_config(
    config: Config, name: str, path: str, checkpoint_bytes: int, *, flags_only: bool = False
) -> Model:
    """The model of a `config.json`. Raises PlanError for a missing or wrong key, and for a family without a formula
    unless `flags_only`."""
    architecture = _architecture(config, name)
    if architecture not in ARCHITECTURES and not flags_only:
        raise PlanError(
            unplanned(name, architecture),
            [f"a model of {', '.join(sorted(ARCHITECTURES))}", "a plan.toml for it by hand: --check checks its flags"],
        )
    text = config.get("text_config", config)
    read = _Reader(text if isinstance(text, Mapping) else config, name)
    heads = read.whole("num_attention_heads")
    model = Model(
        name=name,
        path=path,
        architecture=architecture,
        kind=ARCHITECTURES.get(architecture, CacheKind.UNKNOWN),
        weight_format=_weight_format(config, read, name),
        layers=read.whole("num_hidden_layers"),
        hidden=read.whole("hidden_size"),
        heads=heads,
        kv_heads=read.whole("num_key_value_heads", heads),
        head_dim=read.whole("head_dim", read.whole("hidden_size") // heads),
        vocabulary=read.whole("vocab_size"),
        context_tokens=read.whole("max_position_embeddings"),
        dense_width=read.whole("intermediate_size", 0 if architecture == "DeepseekV4ForCausalLM" else None),
        checkpoint_bytes=checkpoint_bytes,
        mtp_layers=read.whole("num_nextn_predict_layers", 0),
        tied=bool(read.config.get("tie_word_embeddings", False)),
    )
    model = _with_experts(model, read)
    if model.kind is CacheKind.COMPRESSED:
        return _with_compressed(model, read)
    if model.is_latent:
        model = _with_latent(model, read)
    if model.kind is CacheKind.WINDOW:
        model = _with_windows(model, read)
    return _with_vision(model, config)


def _architecture(config: Config, name: str) -> str:
    found = config.get("architectures")
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise PlanError(f"{name}: its config.json names no architecture.")
    return found[0]


def unplanned(name: str, architecture: str) -> str:
    """A sentence that says why the capacity for a family without a formula is not computed."""
    kind = REFUSED.get(architecture, "of a family without a checked formula")
    return f"{name}: the KV cache of {architecture} is {kind}, so its capacity is not computed."


class _Reader:
    """Reads whole numbers of a config. Errors have the model's name."""

    def __init__(self, config: Config, name: str) -> None:
        self.config = config
        self._name = name

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key, default)
        if value is None and default is not None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
            what = "is missing" if value is None else f"is {value!r}, which is not a whole number"
            raise PlanError(f"{self._name}: {key} of its config.json {what}.")
        return value


def _weight_format(config: Config, read: _Reader, name: str) -> str:
    """The format of the experts, from `quantization_config`."""
    quantization = config.get("quantization_config") or read.config.get("quantization_config")
    if quantization is None:
        return "bf16"
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    found = {"fp8": "fp8", "mxfp4": "mxfp4", "compressed-tensors": "int4", "modelopt": "nvfp4"}.get(str(method))
    if found == "fp8" and read.config.get("expert_dtype") == "fp4":
        return "fp4"
    if found is None:
        raise PlanError(f"{name}: the size of weights that are quantised by {method!r} is not known.")
    return found


def _with_experts(model: Model, read: _Reader) -> Model:
    keys = ("n_routed_experts", "num_local_experts", "num_experts")
    experts = next((read.whole(key) for key in keys if key in read.config), 0)
    if not experts:
        return replace(model, dense_layers=model.layers)
    return replace(
        model,
        experts=experts,
        experts_active=read.whole("num_experts_per_tok"),
        shared_experts=read.whole("n_shared_experts", int(model.architecture.startswith("Llama4"))),
        expert_width=read.whole("moe_intermediate_size", model.dense_width),
        dense_layers=read.whole("first_k_dense_replace", 0),
    )


def _with_latent(model: Model, read: _Reader) -> Model:
    """The model with the ranks of MLA and, for DSA, its indexer."""
    model = replace(
        model,
        q_rank=read.whole("q_lora_rank"),
        kv_rank=read.whole("kv_lora_rank"),
        rope_dim=read.whole("qk_rope_head_dim"),
        nope_dim=read.whole("qk_nope_head_dim"),
        v_dim=read.whole("v_head_dim"),
    )
    if model.kind is not CacheKind.SPARSE:
        return model
    return replace(
        model,
        index_dim=read.whole("index_head_dim"),
        index_heads=read.whole("index_n_heads"),
        index_topk=read.whole("index_topk"),
        indexed_layers=_indexed_layers(model, read),
    )


def _indexed_layers(model: Model, read: _Reader) -> int:
    """The number of layers with an indexer's keys: all, unless the config lets layers share an indexer
    (`dsa_layer_skips_topk`, `sglang/srt/configs/model_config.py:488`)."""
    types = read.config.get("indexer_types")
    if isinstance(types, list):
        return sum(each != "shared" for each in types[: model.layers])
    if read.config.get("index_topk_pattern") or read.config.get("index_topk_freq", 1) != 1:
        raise PlanError(f"{model.name}: layers that share an indexer are known by indexer_types only.")
    return model.layers


def _with_compressed(model: Model, read: _Reader) -> Model:
    """The model with the compression ratios of DeepSeek V4's layers. Other ratios, which its successor has, are
    refused, since they need another pool.
    """
    ratios = read.config.get("compress_ratios")
    if not isinstance(ratios, list) or not set(ratios[: model.layers]) <= {0, 4, 128}:
        raise PlanError(f"{model.name}: compress_ratios of its config.json are not of 0, 4 and 128.")
    return replace(
        model,
        q_rank=read.whole("q_lora_rank"),
        o_rank=read.whole("o_lora_rank"),
        o_groups=read.whole("o_groups"),
        rope_dim=read.whole("qk_rope_head_dim"),
        index_dim=read.whole("index_head_dim"),
        index_heads=read.whole("index_n_heads"),
        index_topk=read.whole("index_topk"),
        window_tokens=read.whole("sliding_window"),
        quarter_layers=ratios[: model.layers].count(4),
        coarse_layers=ratios[: model.layers].count(128),
    )


def _with_windows(model: Model, read: _Reader) -> Model:
    """The model with the number of layers that see only a part of the context: those of `layer_types`, or in Llama 4
    all except each fourth layer (`get_hybrid_layer_ids`, `sglang/srt/configs/model_config.py:2700`)."""
    if model.architecture.startswith("Llama4"):
        return replace(
            model, window_layers=model.layers - model.layers // 4, window_tokens=read.whole("attention_chunk_size")
        )
    types = read.config.get("layer_types")
    if not isinstance(types, list):
        raise PlanError(f"{model.name}: layer_types of its config.json is missing.")
    return replace(
        model,
        window_layers=sum(each == "sliding_attention" for each in types),
        window_tokens=read.whole("sliding_window"),
    )


def _with_vision(model: Model, config: Config) -> Model:
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return model
    # `adjust_mem_fraction_for_vlm` (sglang/srt/arg_groups/memory_hook.py) uses 24 and 1024 if a key is missing.
    read = _Reader(vision, model.name)
    layers = read.whole("num_hidden_layers", read.whole("vt_num_hidden_layers", 24))
    return replace(
        model, vision_layers=layers, vision_width=read.whole("hidden_size", read.whole("vt_hidden_size", 1024))
    )
