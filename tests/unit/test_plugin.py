"""The plug-in: inert unless asked, and what it does to weights, experts and masks."""

import os
import subprocess
import sys

import pytest
import stand_in
import torch

from kvtop_lib.sglang_plugin import plugin
from kvtop_lib.sglang_plugin.experts import run_experts
from kvtop_lib.sglang_plugin.packed import linear, packed
from kvtop_lib.sglang_plugin.visibility import visible_keys


@pytest.mark.parametrize("value", [None, "", "0", "yes"])
def test_inert_unless_asked(value):
    """Not even SGLang is imported, so an installed plug-in costs a foreign server nothing."""
    env = {k: v for k, v in os.environ.items() if k != plugin.ENABLE}
    code = (
        "import sys; from kvtop_lib.sglang_plugin.plugin import register; register();"
        "sys.exit(any(m.split('.')[0] in ('sglang', 'torch') for m in sys.modules))"
    )
    env |= {} if value is None else {plugin.ENABLE: value}
    assert subprocess.run([sys.executable, "-c", code], env=env, timeout=600).returncode == 0


@pytest.fixture
def imported(monkeypatch):
    """Names of the hook modules that `register` asks for."""
    names = []

    class Hooks:
        @staticmethod
        def register():
            pass

    def import_module(name):
        names.append(name.rpartition(".")[2])
        return Hooks

    monkeypatch.setattr(plugin.importlib, "import_module", import_module)
    monkeypatch.setenv(plugin.ENABLE, "1")
    return names


def test_cpu_part_stays_out_when_a_gpu_serves(imported, monkeypatch):
    monkeypatch.setattr(plugin, "serves_on_cpu", lambda: False)
    monkeypatch.setattr(plugin, "runs_models", lambda: True)
    plugin.register()
    assert imported == []


@pytest.mark.parametrize("cpu", [True, False])
def test_iterations_are_recorded_where_batches_run_on_whatever_device(imported, monkeypatch, cpu):
    monkeypatch.setattr(plugin, "serves_on_cpu", lambda: cpu)
    monkeypatch.setattr(plugin, "runs_models", lambda: True)
    monkeypatch.delenv(plugin.RECORD, raising=False)
    plugin.register()
    assert "hooks_recorder" not in imported
    monkeypatch.setenv(plugin.RECORD, "file")
    plugin.register()
    assert "hooks_recorder" in imported
    monkeypatch.setattr(plugin, "runs_models", lambda: False)
    imported.clear()
    plugin.register()
    assert "hooks_recorder" not in imported


@pytest.mark.parametrize("models", [True, False])
def test_model_code_is_hooked_where_models_run(imported, monkeypatch, models):
    monkeypatch.setattr(plugin, "serves_on_cpu", lambda: True)
    monkeypatch.setattr(plugin, "runs_models", lambda: models)
    plugin.register()
    assert "hooks_platform" in imported and ("hooks_llama" in imported) == models


@pytest.mark.parametrize("cpu", [True, False])
def test_drafts_that_are_asked_for_come_on_any_device(imported, monkeypatch, cpu):
    monkeypatch.setattr(plugin, "serves_on_cpu", lambda: cpu)
    monkeypatch.setattr(plugin, "runs_models", lambda: False)
    monkeypatch.setenv(plugin.DRAFT, '{"widths": [1, 2]}')
    plugin.register()
    assert "hooks_width" in imported


def test_every_hook_module_is_there():
    folder = stand_in.CPU_SITE.parent
    for name in plugin.PLATFORM_HOOKS + plugin.MODEL_HOOKS:
        assert "def register() -> None:" in (folder / f"{name}.py").read_text()


def bf16_values(*shape, seed=0):
    """float32 numbers that are bf16 numbers, as a bf16 checkpoint loaded in float32 has."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def test_a_weight_is_packed_once_and_a_replaced_one_anew():
    head = torch.nn.Parameter(bf16_values(40, 16), requires_grad=False)
    first = packed(head)
    assert packed(head) is first and not first.is_float32
    head.data = head.data[torch.tensor([3, 1, 7])]  # what SGLang does to a draft's head
    assert packed(head) is not first
    assert torch.equal(packed(head).dense, head.data)


def test_weights_are_never_rounded():
    weight = torch.randn(24, 10, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(weight.bfloat16().float(), weight)
    assert torch.equal(packed(weight).dense, weight)


def test_other_types_are_left_to_torch():
    weight = bf16_values(8, 4).double()
    x = torch.ones(2, 4, dtype=torch.float64)
    assert packed(weight) is None
    assert torch.equal(linear(x, weight, None), x @ weight.T)


def slow_experts(pairs, x, weights, ids):
    """Token by token in float64."""
    out = torch.zeros_like(x, dtype=torch.float64)
    for t in range(len(x)):
        for w, e in zip(weights[t], ids[t].tolist(), strict=True):
            up, down = (matrix.double() for matrix in pairs[e])
            gate, value = (x[t].double() @ up.T).chunk(2)
            out[t] += w.double() * (torch.nn.functional.silu(gate) * value @ down.T)
    return out


def routed(tokens, experts=5, topk=2, hidden=32, inner=24):
    generator = torch.Generator().manual_seed(tokens)
    pairs = [
        (bf16_values(2 * inner, hidden, seed=e), bf16_values(hidden, inner, seed=90 + e))
        for e in range(experts)
    ]
    x = torch.randn(tokens, hidden, generator=generator)
    weights = torch.rand(tokens, topk, generator=generator)
    ids = torch.stack([torch.randperm(experts - 1, generator=generator)[:topk] for _ in x])
    return pairs, x, weights, ids  # the last expert gets no token


@pytest.mark.parametrize("tokens", [1, 2, 48])
def test_experts_sum_what_the_router_chose(tokens):
    pairs, x, weights, ids = routed(tokens)
    ready = [(packed(up), packed(down)) for up, down in pairs]
    out = run_experts(ready, x, weights, ids)
    want = slow_experts(pairs, x, weights, ids)
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-4)


def test_a_token_s_experts_give_the_same_bits_in_any_batch():
    pairs, x, weights, ids = routed(48)
    ready = [(packed(up), packed(down)) for up, down in pairs]
    together = run_experts(ready, x, weights, ids)
    for t in range(0, 48, 7):
        alone = run_experts(ready, x[t : t + 1], weights[t : t + 1], ids[t : t + 1])
        assert torch.equal(alone[0], together[t])


def test_chains_need_no_mask():
    chain = torch.ones(4, 4, dtype=torch.bool).tril()
    assert visible_keys(torch.cat([chain, chain]).flatten(), torch.tensor([9, 4]), 4) is None


@pytest.mark.parametrize("lengths", [[6], [5, 12, 7]])
def test_tree_masks_show_the_prefix_to_all(lengths):
    n, bs = 4, len(lengths)
    generator = torch.Generator().manual_seed(bs)
    tree = torch.rand(bs, n, n, generator=generator) < 0.5
    mask = visible_keys(tree.flatten(), torch.tensor(lengths), n)
    expected = [
        bool(tree[b, i, column - (length - n)]) if column >= length - n else True
        for b, length in enumerate(lengths)
        for i in range(n)
        for column in range(length)
    ]
    assert mask.tolist() == expected
