"""Data and training of tiny-glm: nothing leaks or is drawn twice, a restart changes nothing."""

from __future__ import annotations

import json
from itertools import count

import numpy as np
import pytest
import torch
from test_tiny_glm_model import SMALL

from kvtop_lib.models import tiny_glm_data as data
from kvtop_lib.models.tiny_glm_stream import BATCH, LENGTH, batch_at
from kvtop_lib.models.tiny_glm_train import load_trained, train
from kvtop_lib.terms import KvtopError

PACKAGES = ("click", "papermill")


def test_corpus_is_the_same_twice_and_other_with_another_seed():
    first, again, other = (data.build_corpus(seed, PACKAGES) for seed in (0, 0, 1))
    assert data.corpus_sha256(first) == data.corpus_sha256(again)
    assert data.corpus_sha256(first) != data.corpus_sha256(other)
    assert {d.chat for d in first} == {True, False}


def test_a_missing_package_is_named():
    with pytest.raises(KvtopError, match="no-such-package"):
        data.package_files("no-such-package", 0)


def test_a_file_is_held_out_or_trained_on_never_both():
    documents = data.build_corpus(0, PACKAGES)
    tokenizer = data.train_tokenizer(documents, 400)
    train_ids, held_out_ids = data.encode(documents, tokenizer)
    for ids, side in ((train_ids, False), (held_out_ids, True)):
        text = "".join(d.text for d in documents if d.held_out is side)
        assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == text


def test_chats_follow_the_template_that_the_checkpoint_carries():
    from jinja2 import Template

    chat = [("system", "Be brief."), ("user", "Say {x}"), ("assistant", "x"), ("tool", "1\n2")]
    messages = [{"role": role, "content": content} for role, content in chat]
    assert Template(data.CHAT_TEMPLATE).render(messages=messages) == data.render_chat(chat)
    asked = Template(data.CHAT_TEMPLATE).render(messages=messages[:2], add_generation_prompt=True)
    assert data.render_chat(chat).startswith(asked)


def test_an_epoch_draws_each_stretch_once_and_predicts_every_token():
    stream = np.arange(24 * LENGTH + 1, dtype=np.uint16)
    rows = torch.cat([batch_at(stream, step, seed=3) for step in range(3)])
    assert rows.shape == (3 * BATCH, LENGTH + 1)
    assert sorted(rows[:, 1:].flatten().tolist()) == stream[1:].tolist()
    assert not torch.equal(batch_at(stream, 3, 3), batch_at(stream, 0, 3))  # next epoch, new order


class Killed(Exception):
    pass


def ticking(limit: int | None = None):
    """A clock that moves on by 50 s with every look at it, until it 'kills' the run."""
    looks = count()

    def clock() -> float:
        look = next(looks)
        if look == limit:
            raise Killed
        return 50.0 * look

    return clock


def run_folder(path):
    path.mkdir()
    stream = np.random.default_rng(0).integers(0, SMALL.vocab_size, 9000).astype(np.uint16)
    np.savez(path / "tokens.npz", train=stream, held_out=stream)
    (path / "corpus.json").write_text("{}")
    (path / "bpe.json").write_text(
        data.train_tokenizer([data.Document("a", "a b", False)], 300).to_str()
    )
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = run_folder(tmp_path_factory.mktemp("tiny-glm") / "whole")
    train(folder, minutes=4, config=SMALL, clock=ticking())
    return folder


@pytest.mark.parametrize("killed_at", [3, 5])  # last saved before the growth, after the growth
def test_a_killed_training_goes_on_to_the_same_weights(tmp_path, whole, killed_at):
    broken = run_folder(tmp_path / "broken")
    with pytest.raises(Killed):
        train(broken, minutes=4, config=SMALL, clock=ticking(killed_at))
    train(broken, minutes=4, config=SMALL, clock=ticking())
    first, second = load_trained(whole)[0], load_trained(broken)[0]
    assert len(first.layers) == SMALL.num_hidden_layers
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    metrics = json.loads((broken / "metrics.json").read_text())
    assert (metrics["steps"], metrics["minutes"]) == (5, 4.2)
    assert metrics["trained_tokens"] == 5 * BATCH * LENGTH


def test_another_seed_is_refused_in_the_same_folder(tmp_path):
    folder = run_folder(tmp_path / "run")
    train(folder, minutes=0.5, config=SMALL, clock=ticking())
    with pytest.raises(KvtopError, match="another folder"):
        train(folder, minutes=0.5, seed=1, config=SMALL, clock=ticking())
