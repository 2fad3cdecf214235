"""Models that are known by name: the numbers of their `config.json` and the size of their checkpoint.

No file is read for these models. Each entry names the repository from which its numbers come. Sizes are the
`total_size` of `model.safetensors.index.json`, rounded as in the source.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from warmroute_backend.plan.errors import unknown
from warmroute_backend.plan.model import Model, model_from_config

_GB: Final = 10**9
NOT_KNOWN: Final = 0
"""In place of the size of a checkpoint whose index was not available. Weights are then counted from the model's shape.
"""


class Known(NamedTuple):
    """A model of the table. `config` has the keys of its `config.json` that SGLang and the planner read."""

    path: str
    checkpoint_bytes: int
    config: Mapping[str, Any]


def _deepseek(architecture: str, model_type: str, **changes: Any) -> dict[str, Any]:
    """The numbers of DeepSeek V3 (deepseek-ai/DeepSeek-V3), from which several families are derived."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "n_group": 8,
        "topk_group": 4,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "num_nextn_predict_layers": 1,
        "quantization_config": _FP8,
        **changes,
    }


_FP8: Final = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_INT4_WEIGHTS: Final = {
    "num_bits": 4,
    "type": "int",
    "strategy": "group",
    "group_size": 32,
    "symmetric": True,
    "dynamic": False,
}
_INT4: Final = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": _INT4_WEIGHTS}},
}
_NVFP4: Final = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "group_size": 16,
    "ignore": ["lm_head", "*self_attn*", "*shared_experts*", "*layers.0.mlp*", "*vision_tower*", "*mm_projector*"],
}
_INDEXER: Final = {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}
_KIMI: Final[dict[str, Any]] = {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "vocab_size": 163840,
    "num_nextn_predict_layers": 0,
}


def _kimi_k25(quantization: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "torch_dtype": "bfloat16",
        "text_config": _deepseek(
            "DeepseekV3ForCausalLM",
            "deepseek_v3",
            **_KIMI,
            max_position_embeddings=262144,
            quantization_config=quantization,
        ),
        "vision_config": {"model_type": "kimi_k25", "num_hidden_layers": 27, "hidden_size": 1152},
    }


def _deepseek_v4(ratios: list[int], **changes: Any) -> dict[str, Any]:
    """The numbers of DeepSeek V4. `ratios`: the compression ratio of each layer, the drafting layer last."""
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "bfloat16",
        "expert_dtype": "fp4",
        "head_dim": 512,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "hc_mult": 4,
        "max_position_embeddings": 1_048_576,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "num_hash_layers": 3,
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": 1,
        "o_lora_rank": 1024,
        "qk_rope_head_dim": 64,
        "sliding_window": 128,
        "vocab_size": 129280,
        "quantization_config": {**_FP8, "scale_fmt": "ue8m0"},
        "num_hidden_layers": len(ratios) - 1,
        "compress_ratios": ratios,
        **changes,
    }


def _qwen_moe(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "torch_dtype": "bfloat16",
        "head_dim": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": 151936,
        "quantization_config": _FP8,
        **changes,
    }


_QWEN_235B: Final = _qwen_moe(
    num_hidden_layers=94,
    hidden_size=4096,
    intermediate_size=12288,
    moe_intermediate_size=1536,
    num_attention_heads=64,
    num_key_value_heads=4,
    num_experts=128,
    max_position_embeddings=40960,
)
_GLM_46: Final[dict[str, Any]] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 92,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 1,
    "topk_group": 1,
    "vocab_size": 151552,
    "max_position_embeddings": 202752,
    "num_nextn_predict_layers": 1,
    "quantization_config": _FP8,
}
_GLM_5: Final = _deepseek(
    "GlmMoeDsaForCausalLM",
    "glm_moe_dsa",
    num_hidden_layers=78,
    hidden_size=6144,
    intermediate_size=12288,
    num_attention_heads=64,
    num_key_value_heads=64,
    q_lora_rank=2048,
    qk_nope_head_dim=192,
    v_head_dim=256,
    n_group=1,
    topk_group=1,
    vocab_size=154880,
    max_position_embeddings=202752,
    index_head_dim=128,
    index_n_heads=32,
    index_topk=2048,
)
_GPT_OSS: Final[dict[str, Any]] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "mxfp4"},
}
_MINIMAX_M2: Final[dict[str, Any]] = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 62,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "vocab_size": 200064,
    "max_position_embeddings": 196608,
    "quantization_config": _FP8,
}
"""230e9 parameters of 8 bits (huggingface/transformers, docs/source/en/model_doc/minimax_m2.md)."""

_LLAMA_70B: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
_SCOUT: Final[dict[str, Any]] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "llama4_text",
        "num_hidden_layers": 48,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "attention_chunk_size": 8192,
        "vocab_size": 202048,
        "max_position_embeddings": 10485760,
    },
    "vision_config": {"model_type": "llama4_vision_model", "num_hidden_layers": 34, "hidden_size": 1408},
}

_GLM_52: Final[dict[str, Any]] = {
    **_GLM_5,
    "indexer_types": ["full" if at < 3 or at % 4 == 2 else "shared" for at in range(78)],
    "max_position_embeddings": 1048576,
}
"""From the `config.json` of GLM-5.2: the first three layers have an indexer, then each fourth layer."""


def _qwen3(layers: int, hidden: int, width: int, heads: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    }


MODELS: Final[Mapping[str, Known]] = {
    "kimi-k2.5": Known("moonshotai/Kimi-K2.5", 595 * _GB, _kimi_k25(_INT4)),
    "kimi-k2.5-nvfp4": Known("nvidia/Kimi-K2.5-NVFP4", 591 * _GB, _kimi_k25(_NVFP4)),
    "kimi-k2.6": Known("moonshotai/Kimi-K2.6", 595 * _GB, _kimi_k25(_INT4)),
    "kimi-k2-thinking": Known(
        "moonshotai/Kimi-K2-Thinking",
        594 * _GB,
        _deepseek(
            "DeepseekV3ForCausalLM", "deepseek_v3", **_KIMI, max_position_embeddings=262144, quantization_config=_INT4
        ),
    ),
    "kimi-k2-instruct": Known(
        "moonshotai/Kimi-K2-Instruct",
        1029 * _GB,
        _deepseek("DeepseekV3ForCausalLM", "deepseek_v3", **_KIMI, max_position_embeddings=131072),
    ),
    "deepseek-v3.1": Known("deepseek-ai/DeepSeek-V3.1", 689 * _GB, _deepseek("DeepseekV3ForCausalLM", "deepseek_v3")),
    "deepseek-r1": Known("deepseek-ai/DeepSeek-R1-0528", 689 * _GB, _deepseek("DeepseekV3ForCausalLM", "deepseek_v3")),
    "deepseek-v3.2": Known(
        "deepseek-ai/DeepSeek-V3.2", 690 * _GB, _deepseek("DeepseekV32ForCausalLM", "deepseek_v32", **_INDEXER)
    ),
    "deepseek-v4-pro": Known(
        "deepseek-ai/DeepSeek-V4-Pro",
        NOT_KNOWN,
        _deepseek_v4(
            [128, 128, *[4, 128] * 29, 4, 0],
            hidden_size=7168,
            num_attention_heads=128,
            n_routed_experts=384,
            moe_intermediate_size=3072,
            q_lora_rank=1536,
            o_groups=16,
            index_topk=1024,
        ),
    ),
    "deepseek-v4-flash": Known(
        "deepseek-ai/DeepSeek-V4-Flash",
        NOT_KNOWN,
        _deepseek_v4(
            [0, 0, *[4, 128] * 20, 4, 0],
            hidden_size=4096,
            num_attention_heads=64,
            n_routed_experts=256,
            moe_intermediate_size=2048,
            q_lora_rank=1024,
            o_groups=8,
            index_topk=512,
        ),
    ),
    "glm-4.6": Known("zai-org/GLM-4.6-FP8", 361 * _GB, _GLM_46),
    "glm-4.7": Known("zai-org/GLM-4.7-FP8", 361 * _GB, _GLM_46),
    "glm-5": Known("zai-org/GLM-5-FP8", 756 * _GB, _GLM_5),
    "glm-5.2": Known("zai-org/GLM-5.2-FP8", 756 * _GB, _GLM_52),
    "qwen3-coder-480b": Known(
        "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8",
        482 * _GB,
        _qwen_moe(
            num_hidden_layers=62,
            hidden_size=6144,
            intermediate_size=8192,
            moe_intermediate_size=2560,
            num_attention_heads=96,
            num_key_value_heads=8,
            num_experts=160,
            max_position_embeddings=262144,
        ),
    ),
    "qwen3-235b": Known("Qwen/Qwen3-235B-A22B-FP8", 236 * _GB, _QWEN_235B),
    "qwen3-235b-2507": Known(
        "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", 236 * _GB, {**_QWEN_235B, "max_position_embeddings": 262144}
    ),
    "qwen3-30b-2507": Known(
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        2 * 30_532_122_624,
        _qwen_moe(
            num_hidden_layers=48,
            hidden_size=2048,
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_attention_heads=32,
            num_key_value_heads=4,
            num_experts=128,
            max_position_embeddings=262144,
            quantization_config=None,
        ),
    ),
    "minimax-m2": Known("MiniMaxAI/MiniMax-M2", 230 * _GB, _MINIMAX_M2),
    "llama-3.3-70b": Known("meta-llama/Llama-3.3-70B-Instruct", 2 * 70_553_706_496, _LLAMA_70B),
    "gpt-oss-120b": Known("openai/gpt-oss-120b", 65_248_815_744, _GPT_OSS),
    "gpt-oss-20b": Known(
        "openai/gpt-oss-20b",
        13_761_264_768,
        {
            **_GPT_OSS,
            "num_hidden_layers": 24,
            "num_local_experts": 32,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
        },
    ),
    "qwen3-8b": Known("Qwen/Qwen3-8B", 2 * 8_190_735_360, _qwen3(36, 4096, 12288, 32)),
    "qwen3-32b": Known("Qwen/Qwen3-32B", 2 * 32_762_123_264, _qwen3(64, 5120, 25600, 64)),
    "llama-4-scout": Known("meta-llama/Llama-4-Scout-17B-16E-Instruct", 217_283_587_072, _SCOUT),
}


def known_model(name: str) -> Model:
    """A model of the table, by its name or its repository's name. Raises PlanError with the nearest names."""
    for key, known in MODELS.items():
        if name.lower() in {key, known.path.lower(), known.path.lower().rpartition("/")[2]}:
            return model_from_config(known.config, key, known.path, known.checkpoint_bytes)
    raise unknown("model", name, MODELS)


def names_of(model: Model) -> tuple[str, ...]:
    """The names in the table that fit a model. If the model's name begins with a name of the table, in upper or lower
    case, only that name fits. Otherwise all names fit whose models have the model's shape, so that a checkpoint in a
    folder with any name gets the right flags.
    """
    name = model.name.lower()
    own = max((key for key in MODELS if name.startswith(key)), key=len, default=None)
    if own is not None:
        return (own,)
    return tuple(key for key in MODELS if _shape(known_model(key)) == _shape(model))


def _shape(model: Model) -> Model:
    """The model without the fields that quantisation, a longer context or another name changes."""
    return replace(model, name="", path="", checkpoint_bytes=0, weight_format="", context_tokens=0, mtp_layers=0)
