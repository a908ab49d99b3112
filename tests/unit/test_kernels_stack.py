"""The fused Llama stack against float64, written out, and against itself in other batches."""

import dataclasses

import pytest
import torch
from kernels_help import COMPILED, VARIANTS, bits, draw, on

from kvtop_lib.sglang_plugin import kernels

H, FFN, Q, KV, D, LAYERS, SLOTS = 48, 80, 4, 2, 16, 3, 64


@dataclasses.dataclass
class Model:
    """Random weights; `draft` has no input norm and no final norm; `bias` has all biases."""

    draft: bool = False
    bias: bool = False
    ffn: int = FFN

    def __post_init__(self):
        shapes = {
            "qkv": ((Q + 2 * KV) * D, H),
            "o": (H, Q * D),
            "gate_up": (2 * self.ffn, H),
            "down": (H, self.ffn),
        }
        self.weights = [
            {
                n: (draw(*s, seed=9 * i + j) * s[1] ** -0.5).bfloat16()
                for j, (n, s) in enumerate(shapes.items())
            }
            for i in range(LAYERS)
        ]
        self.biases = [
            {n: draw(s[0], seed=50 + 9 * i + j) * 0.1 for j, (n, s) in enumerate(shapes.items())}
            if self.bias
            else {}
            for i in range(LAYERS)
        ]
        self.norms = [draw(2, H, seed=100 + i) * 0.1 + 1 for i in range(LAYERS)]
        self.final = None if self.draft else draw(H, seed=200) * 0.1 + 1
        angles = torch.outer(torch.arange(40.0), 0.5 ** torch.arange(D / 2))
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)

    def stack(self) -> kernels.LlamaStack:
        layers = []
        for weights, biases, norms in zip(self.weights, self.biases, self.norms, strict=True):
            packed = {n: kernels.pack_weight(w) for n, w in weights.items()}
            pools = torch.zeros(2, SLOTS, KV, D)
            layers.append(
                kernels.LlamaLayer(
                    None if self.draft else norms[0],
                    post_norm=norms[1],
                    k_pool=pools[0],
                    v_pool=pools[1],
                    biases=biases,
                    **packed,
                )
            )
        return kernels.LlamaStack(layers, self.final, self.cos_sin, Q, D, 1e-5)

    def truth(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states of one sequence from position 0, causal, in float64."""

        def norm(a, w):
            return a / (a.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w.double()

        def rotate(a):  # [tokens, heads, D]
            cos, sin = self.cos_sin[: len(a), None].double().chunk(2, dim=-1)
            low, high = a.chunk(2, dim=-1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

        x, n = x.double(), len(x)
        for weights, biases, norms in zip(self.weights, self.biases, self.norms, strict=True):

            def apply(a, name, w=weights, b=biases):
                return a @ w[name].double().T + (b[name].double() if b else 0)

            qkv = apply(x if self.draft else norm(x, norms[0]), "qkv").view(n, -1, D)
            q, k, v = qkv.split([Q, KV, KV], dim=1)
            q, k = rotate(q), rotate(k)
            k, v = (a.repeat_interleave(Q // KV, dim=1) for a in (k, v))
            scores = torch.einsum("thd,shd->hts", q, k) * D**-0.5
            scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
            seen = torch.einsum("hts,shd->thd", scores.softmax(-1), v).flatten(1)
            x = x + apply(seen, "o")
            gate, up = apply(norm(x, norms[1]), "gate_up").chunk(2, dim=-1)
            x = x + apply(gate * torch.sigmoid(gate) * up, "down")
        return (x if self.draft else norm(x, self.final)).float()


def run(stack, x, pieces, slots):
    """Feed one sequence in pieces (prefill, decode and verify are pieces of other lengths)."""
    outs, start = [], 0
    for piece in pieces:
        end = start + piece
        batch = kernels.Batch(
            slots.int().unsqueeze(0), torch.tensor([0]), torch.tensor([end]), torch.tensor([piece])
        )
        outs.append(
            stack.forward(
                x[start:end].clone(), torch.arange(start, end), slots[start:end].clone(), batch
            )
        )
        start = end
    return torch.cat(outs)


MODELS = {
    "trunk": Model(),
    "draft": Model(draft=True),
    "biases": Model(bias=True),
    "ffn of half a panel": Model(ffn=72),
}
SLOT_ORDER = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_equals_float64(variant, name):
    model, x = MODELS[name], draw(30, H, seed=7)
    with on(variant):
        got = run(model.stack(), x, [30], SLOT_ORDER)
    assert torch.allclose(got, model.truth(x), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_pieces_threads_and_vector_width_do_not_change_a_bit(name):
    x, results = draw(30, H, seed=7), []
    for variant in COMPILED:
        for threads, pieces in (
            (1, [30]),
            (2, [1] * 30),
            (2, [10, 4, 4, 1, 2, 2, 7]),
            (3, [29, 1]),
        ):
            with on(variant):
                kernels.set_threads(threads)
                results.append(run(MODELS[name].stack(), x, pieces, SLOT_ORDER))
    assert all(torch.equal(bits(r), bits(results[0])) for r in results)


@pytest.mark.parametrize("variant", COMPILED)
def test_a_ragged_batch_equals_its_requests_alone_to_the_bit(variant):
    model, lengths = MODELS["trunk"], [5, 1, 17]
    inputs = [draw(n, H, seed=20 + n) for n in lengths]
    with on(variant):
        alone = [run(model.stack(), x, [len(x)], SLOT_ORDER) for x in inputs]
        table = torch.stack([SLOT_ORDER[i * 20 : i * 20 + 20] for i in range(3)]).int()
        batch = kernels.Batch(table, torch.arange(3), torch.tensor(lengths), torch.tensor(lengths))
        slots = torch.cat([table[i, :n] for i, n in enumerate(lengths)]).long()
        positions = torch.cat([torch.arange(n) for n in lengths])
        got = model.stack().forward(torch.cat(inputs), positions, slots, batch)
    assert torch.equal(bits(got), bits(torch.cat(alone)))


def test_refusals():
    model = Model()
    stack = model.stack()
    batch = kernels.Batch(
        torch.zeros(1, 9, dtype=torch.int32),
        torch.tensor([0]),
        torch.tensor([2]),
        torch.tensor([2]),
    )
    with pytest.raises(ValueError, match="positions must be"):
        stack.forward(draw(2, H), torch.arange(2).int(), torch.arange(2), batch)
    with pytest.raises(ValueError, match="x must be"):
        stack.forward(draw(2, H - 1), torch.arange(2), torch.arange(2), batch)
    with pytest.raises(ValueError, match="qkv is"):
        kernels.LlamaStack(stack.layers, model.final, model.cos_sin, Q + 2, D, 1e-5)
    with pytest.raises(ValueError, match="final norm must be"):
        kernels.LlamaStack(stack.layers, draw(H + 1), model.cos_sin, Q, D, 1e-5)
