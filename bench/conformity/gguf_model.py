"""Writes the tiny model in llama.cpp's format: `python gguf_model.py FOLDER FILE`. Needs gguf and safetensors.

The tensors are those of the Qwen3 model of `scripts/sglang_cpu/build_model.py`, under llama.cpp's names.
"""

# mypy: disable-error-code="import-not-found"
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors import safe_open

PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def name_of(name: str) -> str:
    """llama.cpp's name of a tensor."""
    stem = name.removesuffix(".weight")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.weight"
    _, _, number, part = stem.split(".", 3)
    return f"blk.{number}.{PARTS[part]}.weight"


def main() -> None:
    """Write the file."""
    _, given, out = sys.argv
    folder = Path(given)
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(out, "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_tokens(writer, tokenizer, json.loads((folder / "tokenizer_config.json").read_text())["chat_template"])
    with safe_open(str(folder / "model.safetensors"), "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - it is no mapping
            writer.add_tensor(name_of(name), tensors.get_tensor(name).float().numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokens(writer: gguf.GGUFWriter, tokenizer: dict[str, dict[str, dict[str, int]]], template: str) -> None:
    """Add the vocabulary, a byte-level BPE."""
    vocabulary = tokenizer["model"]["vocab"]
    names = sorted(vocabulary, key=lambda token: vocabulary[token])
    special = {token["content"] for token in tokenizer["added_tokens"]}  # type: ignore[index]
    kinds = [gguf.TokenType.CONTROL if name in special else gguf.TokenType.NORMAL for name in names]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(vocabulary["<|im_end|>"])
    writer.add_pad_token_id(vocabulary["<|endoftext|>"])
    writer.add_chat_template(template)


if __name__ == "__main__":
    main()
