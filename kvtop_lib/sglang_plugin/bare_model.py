"""A Llama checkpoint on the kernels alone, without SGLang."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from . import kernels


class BareLlama:
    """A Llama-layout model with a KV pool whose slots the caller hands out.

    Parameters
    ----------
    config
        The checkpoint's `config.json` as a dict.
    weights
        Tensors by their Hugging Face names, bf16 or float32.
    pool_tokens
        KV slots; each costs 2 * layers * kv_heads * head_dim * 4 bytes.

    Raises
    ------
    ValueError
        The architecture is not a plain Llama, or uses RoPE scaling.
    """

    def __init__(self, config: dict, weights: dict[str, torch.Tensor], pool_tokens: int):
        if config.get("model_type") != "llama":
            raise ValueError(
                f"the bare loop serves Llama checkpoints, not {config.get('model_type')!r}"
            )
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(f"RoPE scaling {rope['rope_type']!r} is not supported here")
        self.config = config
        self.hidden = config["hidden_size"]
        self.q_heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads", self.q_heads)
        self.head_dim = config.get("head_dim") or self.hidden // self.q_heads
        self.pool_tokens = pool_tokens
        theta = rope.get("rope_theta") or config.get("rope_theta", 10000.0)
        self.stack = kernels.LlamaStack(
            [
                self._layer(weights, f"model.layers.{i}.")
                for i in range(config["num_hidden_layers"])
            ],
            weights["model.norm.weight"].float(),
            self._cos_sin(theta),
            self.q_heads,
            self.head_dim,
            config["rms_norm_eps"],
        )
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = kernels.pack_weight(weights.get("lm_head.weight", self.embedding))

    @classmethod
    def load(cls, folder: Path, pool_tokens: int) -> "BareLlama":
        """Read a Hugging Face checkpoint folder (`config.json`, `*.safetensors`)."""
        config = json.loads((Path(folder) / "config.json").read_text())
        weights = {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            weights |= load_file(path)
        return cls(config, weights, pool_tokens)

    @classmethod
    def random(cls, config: dict, pool_tokens: int) -> "BareLlama":
        """Random bf16 weights of a config's shapes, for the bench."""
        h, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
        d = config.get("head_dim") or h // config["num_attention_heads"]
        q, kv = d * config["num_attention_heads"], d * config["num_key_value_heads"]
        shapes = {
            "self_attn.q_proj": (q, h),
            "self_attn.k_proj": (kv, h),
            "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q),
            "mlp.gate_proj": (f, h),
            "mlp.up_proj": (f, h),
            "mlp.down_proj": (h, f),
            "input_layernorm": (h,),
            "post_attention_layernorm": (h,),
        }
        names = {"model.embed_tokens.weight": (v, h), "model.norm.weight": (h,)}
        for i in range(config["num_hidden_layers"]):
            names |= {f"model.layers.{i}.{n}.weight": s for n, s in shapes.items()}
        draw = torch.Generator().manual_seed(0)
        weights = {
            n: torch.ones(s)
            if len(s) == 1
            else (torch.randn(s, generator=draw) * s[1] ** -0.5).bfloat16()
            for n, s in names.items()
        }
        return cls(config, weights, pool_tokens)

    def _layer(self, weights: dict, prefix: str) -> kernels.LlamaLayer:
        def stacked(*names):
            return kernels.pack_weight(torch.cat([weights[f"{prefix}{n}.weight"] for n in names]))

        pools = torch.zeros(2, self.pool_tokens, self.kv_heads, self.head_dim)
        attn = [f"self_attn.{x}_proj" for x in "qkv"]
        return kernels.LlamaLayer(
            weights[f"{prefix}input_layernorm.weight"].float(),
            stacked(*attn),
            stacked("self_attn.o_proj"),
            weights[f"{prefix}post_attention_layernorm.weight"].float(),
            stacked("mlp.gate_proj", "mlp.up_proj"),
            stacked("mlp.down_proj"),
            *pools,
        )

    def _cos_sin(self, theta: float) -> torch.Tensor:
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float) / self.head_dim
        angles = torch.outer(
            torch.arange(self.config["max_position_embeddings"]).float(), 1.0 / theta**steps
        )
        return torch.cat((angles.cos(), angles.sin()), dim=-1)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, batch: kernels.Batch
    ) -> torch.Tensor:
        """Final-normed hidden states float32 [tokens, hidden] of the new tokens."""
        return self.stack.forward(self.embedding[ids].float(), positions, slots, batch)

    def next_tokens(self, hidden: torch.Tensor) -> torch.Tensor:
        """Greedy next token of each row, int64 [rows]."""
        return kernels.argmax(kernels.linear(hidden, self.head))
