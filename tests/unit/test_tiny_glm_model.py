"""tiny-glm's forward pass against transformers and against a NextN layer written out in loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import MtpLayer
from transformers.models.glm4_moe import modeling_glm4_moe as reference

from kvtop_lib.models.tiny_glm_export import load_checkpoint
from kvtop_lib.models.tiny_glm_model import TinyGlm, TinyGlmConfig
from kvtop_lib.models.tiny_glm_optim import orthogonalise
from kvtop_lib.models.tiny_glm_train import grow
from kvtop_lib.paths import embedded_dir

FOLDER = embedded_dir() / "tiny-glm"
SMALL = TinyGlmConfig(
    vocab_size=40, hidden_size=16, intermediate_size=24, moe_intermediate_size=8,
    num_hidden_layers=2, head_dim=8, max_position_embeddings=520,
)  # fmt: skip


@pytest.fixture(scope="module")
def committed() -> TinyGlm:
    return load_checkpoint(FOLDER)[0]


@pytest.fixture(scope="module")
def engine() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


def some_tokens(count: int, size: int = 2048) -> torch.Tensor:
    return torch.randint(size, (2, count), generator=torch.Generator().manual_seed(1))


def small_model() -> TinyGlm:
    """Random weights of a size at which attention, routing and norms all matter."""
    torch.manual_seed(0)
    model = TinyGlm(SMALL).eval()
    for param in model.parameters():
        param.data = torch.randn_like(param) * (0.3 if param.ndim == 2 else 1.0)
    model.nextn.mlp.gate.e_score_correction_bias.copy_(torch.tensor([0.3, -0.2, 0.1, -0.4]))
    return model


@torch.no_grad()
def test_trunk_logits_equal_transformers(committed, engine):
    tokens = some_tokens(200)
    ours = committed.logits(committed.hidden(tokens))
    theirs = engine(tokens).logits
    assert theirs.abs().max() > 3  # trained weights, not noise around zero
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_nextn_layer_equals_transformers(committed, engine):
    """transformers' own MTP layer, filled from the file; there the MoE sits in `mtp_block`."""
    layer = MtpLayer(
        engine.config, reference.Glm4MoeDecoderLayer, reference.Glm4MoeRMSNorm, layer_idx=8
    )
    stored = {
        name.removeprefix("model.layers.8."): tensor.float()
        for name, tensor in load_file(FOLDER / "model.safetensors").items()
        if name.startswith("model.layers.8.")
    }
    filled = {"post_norm.weight": stored.pop("shared_head.norm.weight")}
    for name in ("enorm.weight", "hnorm.weight", "eh_proj.weight"):
        filled[name] = stored.pop(name)
    gates, ups, downs = (
        torch.stack([stored.pop(f"mlp.experts.{i}.{part}_proj.weight") for i in range(4)])
        for part in ("gate", "up", "down")
    )
    filled["mtp_block.mlp.experts.gate_up_proj"] = torch.cat([gates, ups], 1)
    filled["mtp_block.mlp.experts.down_proj"] = downs
    layer.load_state_dict(filled | {f"mtp_block.{n}": t for n, t in stored.items()})

    tokens = some_tokens(60)
    hidden = committed.hidden(tokens[:, :-1])
    length = hidden.shape[1]
    positions = torch.arange(length)[None]
    mask = torch.full((length, length), -math.inf).triu(1)[None, None]
    theirs = layer(
        engine.model.embed_tokens(tokens[:, 1:]),
        hidden,
        position_embeddings=engine.model.rotary_emb(hidden, positions),
        attention_mask=mask,
        position_ids=positions,
        past_key_values=None,
    )
    torch.testing.assert_close(
        committed.draft_hidden(tokens[:, 1:], hidden), theirs, atol=1e-4, rtol=1e-4
    )


def slow_nextn(model: TinyGlm, tokens: list[int], hidden: np.ndarray) -> np.ndarray:
    """The NextN layer row by row, head by head, expert by expert, in float64.

    Written from SGLang's glm4_moe_nextn.py and the sigmoid routing of DeepSeek-V3.
    """
    w = {n: p.detach().double().numpy() for n, p in model.nextn.state_dict().items()}
    table = model.embed_tokens.weight.detach().double().numpy()
    dim, rotary, eps = SMALL.head_dim, SMALL.head_dim // 2, SMALL.rms_norm_eps

    def norm(x, name):
        return x / math.sqrt(np.mean(x**2) + eps) * w[name + ".weight"]

    def turn(x, position):
        x = x.copy()
        for i in range(rotary // 2):
            angle = position / SMALL.rope_theta ** (2 * i / rotary)
            a, b = x[i], x[i + rotary // 2]
            x[i] = a * math.cos(angle) - b * math.sin(angle)
            x[i + rotary // 2] = b * math.cos(angle) + a * math.sin(angle)
        return x

    def mlp(x, prefix):
        gate, up = w[prefix + ".gate_proj.weight"] @ x, w[prefix + ".up_proj.weight"] @ x
        return w[prefix + ".down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)

    keys, values, out = [], [], []
    for row, token in enumerate(tokens):
        pair = np.concatenate([norm(table[token], "enorm"), norm(hidden[row], "hnorm")])
        x = w["eh_proj.weight"] @ pair
        normed = norm(x, "input_layernorm")
        q, k, v = ((w[f"self_attn.{part}_proj.weight"] @ normed).reshape(-1, dim) for part in "qkv")
        keys.append([turn(norm(head, "self_attn.k_norm"), row) for head in k])
        values.append(v)
        heads = []
        for index, head in enumerate(q):
            head, group = turn(norm(head, "self_attn.q_norm"), row), index // 2
            scores = np.exp([head @ key[group] / math.sqrt(dim) for key in keys])
            heads.append(scores @ np.array([value[group] for value in values]) / scores.sum())
        x = x + w["self_attn.o_proj.weight"] @ np.concatenate(heads)
        normed = norm(x, "post_attention_layernorm")
        scores = 1 / (1 + np.exp(-w["mlp.gate.weight"] @ normed))
        chosen = np.argsort(scores + w["mlp.gate.e_score_correction_bias"])[-2:]
        x = x + mlp(normed, "mlp.shared_experts")
        for expert in chosen:
            x = x + scores[expert] / scores[chosen].sum() * mlp(normed, f"mlp.experts.{expert}")
        out.append(norm(x, "shared_head.norm"))
    return np.array(out)


@torch.no_grad()
def test_nextn_layer_equals_the_written_out_one():
    model, tokens = small_model(), some_tokens(20, SMALL.vocab_size)
    hidden = model.hidden(tokens[:, :-1])
    ours = model.draft_hidden(tokens[:, 1:], hidden)
    for row in range(2):
        slow = slow_nextn(model, tokens[row, 1:].tolist(), hidden[row].double().numpy())
        np.testing.assert_allclose(ours[row].numpy(), slow, atol=2e-4)


@torch.no_grad()
def test_growing_keeps_the_function():
    model, tokens = small_model(), some_tokens(20, SMALL.vocab_size)
    before = model.hidden(tokens)
    grow(model)
    assert len(model.layers) == 4
    torch.testing.assert_close(model.hidden(tokens), before)


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert values.min() > 0.6 and values.max() < 1.3
