"""Build the tiny model that SGLang serves on a CPU: a random Qwen3 and a tokenizer trained on the recorded sessions.

Usage: build_model.py OUT. OUT/draft is an EAGLE-3 draft for it. The same pins and recordings give the same bytes: the
tokenizer is trained on the recordings in order, the weights come from a seeded generator and are written by hand,
without transformers.
"""

# mypy: disable-error-code="import-not-found"
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SAMPLES = Path(__file__).parents[2] / "lab" / "warmroute_lab" / "samples"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")

PAD, IM_START, IM_END = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 2048
CONTEXT_TOKENS = 32_768
"""What the model can take; servers are started with less."""

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 64, 2, 4, 2, 16, 128
DRAFT_READS = (-1, 0)
"""The draft reads the model's state after these layers; -1 is the embedding."""

SEED = 0


def recorded_text() -> Iterator[str]:
    """What the recorded sessions say, in the order of their names."""
    for path in sorted(SAMPLES.glob("*.json.gz")):
        for part in json.loads(gzip.decompress(path.read_bytes()))["parts"]:
            yield json.dumps(part, ensure_ascii=False)


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE, so that any text has tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(recorded_text(), trainer)
    return tokenizer


def speakable(tokenizer: Tokenizer) -> torch.Tensor:
    """(vocabulary,) 1.0 for tokens that the model may say: whole printable ASCII, no special tokens.

    The others get logits of zero, which is far below the largest of two thousand: answers are as long as the request
    allows, and no character is ever split between two chunks of a stream.
    """
    pieces = [tokenizer.decode([token], skip_special_tokens=True) for token in range(tokenizer.get_vocab_size())]
    return torch.tensor([float(bool(piece) and piece.isascii() and piece.isprintable()) for piece in pieces])


class Draw:
    """Random matrices from a seed, large enough for attention to matter: the answer depends on the whole prompt."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def linear(self, rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=self._generator) * columns**-0.5).to(torch.bfloat16)


def norm(width: int) -> torch.Tensor:
    return torch.ones(width, dtype=torch.bfloat16)


def layer(draw: Draw, prefix: str, seen: int = HIDDEN) -> dict[str, torch.Tensor]:
    """A layer whose attention reads `seen` numbers of each token."""
    return {
        f"{prefix}.input_layernorm.weight": norm(HIDDEN),
        f"{prefix}.post_attention_layernorm.weight": norm(HIDDEN),
        f"{prefix}.self_attn.q_proj.weight": draw.linear(HEADS * HEAD_DIM, seen),
        f"{prefix}.self_attn.k_proj.weight": draw.linear(KV_HEADS * HEAD_DIM, seen),
        f"{prefix}.self_attn.v_proj.weight": draw.linear(KV_HEADS * HEAD_DIM, seen),
        f"{prefix}.self_attn.o_proj.weight": draw.linear(HIDDEN, HEADS * HEAD_DIM),
        f"{prefix}.mlp.gate_proj.weight": draw.linear(INNER, HIDDEN),
        f"{prefix}.mlp.up_proj.weight": draw.linear(INNER, HIDDEN),
        f"{prefix}.mlp.down_proj.weight": draw.linear(HIDDEN, INNER),
    }


def weights(tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
    draw = Draw(SEED)
    found = {"model.embed_tokens.weight": draw.linear(VOCABULARY, HIDDEN) * HIDDEN**0.5}
    found["model.norm.weight"] = norm(HIDDEN)
    for number in range(LAYERS):
        prefix = f"model.layers.{number}"
        found |= layer(draw, prefix)
        found[f"{prefix}.self_attn.q_norm.weight"] = norm(HEAD_DIM)
        found[f"{prefix}.self_attn.k_norm.weight"] = norm(HEAD_DIM)
    said = speakable(tokenizer).to(torch.bfloat16)[:, None]
    return found | {"lm_head.weight": 3 * draw.linear(VOCABULARY, HIDDEN) * said}


def draft_weights() -> dict[str, torch.Tensor]:
    """Those of a draft of one layer, which reads the model's state at two depths and the next token's embedding."""
    draw = Draw(SEED + 1)
    found = layer(draw, "midlayer", seen=2 * HIDDEN) | {"midlayer.hidden_norm.weight": norm(HIDDEN)}
    found["fc.weight"] = draw.linear(HIDDEN, len(DRAFT_READS) * HIDDEN)
    return found | {"norm.weight": norm(HIDDEN), "lm_head.weight": draw.linear(VOCABULARY, HIDDEN)}


def shape(tokenizer: Tokenizer) -> dict[str, object]:
    """What the configurations of model and draft share."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.token_to_id(PAD),
        "pad_token_id": tokenizer.token_to_id(PAD),
        "eos_token_id": tokenizer.token_to_id(IM_END),
        "torch_dtype": "bfloat16",
    }


def config(tokenizer: Tokenizer) -> dict[str, object]:
    """What transformers and SGLang read about the model."""
    own = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": LAYERS}
    return shape(tokenizer) | own


def draft_config(tokenizer: Tokenizer) -> dict[str, object]:
    """What SGLang reads about the draft."""
    own = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1}
    eagle = {"eagle_aux_hidden_state_layer_ids": list(DRAFT_READS), "use_aux_hidden_state": True}
    return shape(tokenizer) | own | {"mlp_bias": False, "draft_vocab_size": VOCABULARY, "eagle_config": eagle}


def tokenizer_config() -> dict[str, object]:
    """What transformers reads about the tokenizer."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": IM_END,
        "pad_token": PAD,
        "model_max_length": CONTEXT_TOKENS,
        "chat_template": TEMPLATE.read_text(encoding="utf-8"),
        "clean_up_tokenization_spaces": False,
    }


def save(out: Path, config: dict[str, object], tensors: dict[str, torch.Tensor]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})


def main() -> None:
    out = Path(sys.argv[1])
    tokenizer = train_tokenizer()
    if tokenizer.get_vocab_size() != VOCABULARY:
        sys.exit(f"the recordings give {tokenizer.get_vocab_size()} tokens; {VOCABULARY} are needed")
    save(out, config(tokenizer), weights(tokenizer))
    save(out / "draft", draft_config(tokenizer), draft_weights())
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
