"""The width controller against machines whose best width is known."""

import random

import pytest

from kvtop_lib.sglang_plugin.drafts import goodput
from kvtop_lib.sglang_plugin.drafts.goodput import Goodput, bucket

WIDTHS = (1, 2, 4)


class Machine:
    """Iterations that read the weights or multiply, whichever takes longer, and draft.

    Parameters
    ----------
    chance : that a draft holds, given the one before it did.
    memory_s, row_s : least time of an iteration, and time per verified row.
    draft_s : per draft step.
    """

    def __init__(self, chance, memory_s=10e-3, row_s=1e-3, draft_s=1e-3, noise=0.1, seed=1):
        self.chance, self.memory_s, self.row_s, self.draft_s = chance, memory_s, row_s, draft_s
        self.noise, self.rng = noise, random.Random(seed)

    def seconds(self, width, batch):
        return max(self.memory_s, self.row_s * width * batch) + self.draft_s * (width - 1)

    def tokens(self, width):
        return sum(self.chance**i for i in range(width))

    def rate(self, width, batch):
        """Expected tokens per second: the truth."""
        return batch * self.tokens(width) / self.seconds(width, batch)

    def best(self, batch):
        return max(WIDTHS, key=lambda w: self.rate(w, batch))

    def run(self, policy, batch, iterations):
        """Mean rate over the iterations, as the policy chooses, by the true rates."""
        tokens = seconds = 0.0
        for _ in range(iterations):
            width = policy.choose(batch, 0)
            took = self.seconds(width, batch)
            tokens += batch * self.tokens(width)
            seconds += took
            policy.timed(width, batch, took * self.rng.uniform(1 - self.noise, 1 + self.noise))
            for _ in range(min(batch, 4)):  # enough to learn from
                held = 0
                while held < width - 1 and self.rng.random() < self.chance:
                    held += 1
                policy.accepted("mtp", width - 1, held)
        return tokens / seconds


def test_the_machines_have_different_best_widths():
    """Otherwise the tests below would show little."""
    machine = Machine(0.7)
    assert [machine.best(b) for b in (1, 4, 8, 32)] == [4, 2, 1, 1]


@pytest.mark.parametrize("chance", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("batch", [1, 3, 8, 32])
def test_at_every_load_within_noise_of_the_best_width(chance, batch):
    machine, policy = Machine(chance), Goodput(WIDTHS)
    machine.run(policy, batch, 300)  # it has to look around once
    assert machine.run(policy, batch, 1000) > 0.97 * machine.rate(machine.best(batch), batch)


def test_better_than_any_single_width_over_the_range():
    machine, policy = Machine(0.7), Goodput(WIDTHS)
    loads = (1, 2, 4, 8, 16, 32)

    def product(rates):
        result = 1.0
        for rate in rates:
            result *= rate
        return result

    got = product(machine.run(policy, b, 700) for b in loads)
    assert all(got > product(machine.rate(w, b) for b in loads) for w in WIDTHS)


def test_it_follows_when_drafts_become_good_or_bad():
    policy = Goodput(WIDTHS)
    for chance in (0.9, 0.1, 0.9):
        machine = Machine(chance, draft_s=2e-3)
        machine.run(policy, 2, 2500)
        assert machine.run(policy, 2, 500) > 0.95 * machine.rate(machine.best(2), 2)


def test_exploration_is_bounded():
    machine, policy = Machine(0.7), Goodput(WIDTHS)
    machine.run(policy, 8, 800)
    explored = 0
    for _ in range(2000):
        machine.run(policy, 8, 1)
        explored += policy.reason == "explore"
    assert 0 < explored < 0.02 * 2000


def test_equal_widths_are_not_switched_to_and_fro():
    machine, policy = Machine(0.5, memory_s=1.5e-2, row_s=0, draft_s=5e-3), Goodput((1, 2))
    assert machine.rate(2, 4) / machine.rate(1, 4) == pytest.approx(1.125)
    machine.run(policy, 4, 500)
    switches, last = 0, None
    for _ in range(3000):
        width = policy.choose(4, 0)
        machine_s = machine.seconds(width, 4)
        policy.timed(width, 4, machine_s * machine.rng.uniform(0.97, 1.03))
        if policy.reason != "explore":
            switches += last is not None and width != last
            last = width
    assert switches <= 2 and last == 2


def test_matched_rows_count_with_their_own_acceptance():
    policy = Goodput((1, 4))
    for _ in range(1000):
        policy.accepted("ngram", 3, 3)
        policy.accepted("mtp", 3, 0)
        policy.timed(1, 4, 10e-3)
        policy.timed(4, 4, 20e-3)
    assert policy.rate(4, 4, 4) > policy.rate(1, 4, 4) == pytest.approx(400, rel=0.01)
    assert policy.rate(4, 4, 0) < policy.rate(1, 4, 0)
    assert policy.rate(4, 4, 4) == pytest.approx(4 * 4 / 20e-3, rel=0.05)


def test_ranks_with_different_clocks_choose_alike():
    inbox = []

    def share_of(rank):
        def share(values):
            if rank == 0:
                inbox.append(list(values))
            return inbox[-1]

        return share

    ranks = [Goodput(WIDTHS, share_of(rank)) for rank in range(2)]
    rng, chosen = random.Random(5), [[], []]
    for step in range(4000):
        batch = 1 + step // 100 % 24
        for rank, policy in enumerate(ranks):
            chosen[rank].append(policy.choose(batch, 0))
        width = chosen[0][-1]
        held = rng.randrange(width)
        for rank, policy in enumerate(ranks):
            policy.timed(width, batch, (rank + 1) * rng.uniform(0.5, 2.0) * 1e-2)
            policy.accepted("mtp", width - 1, held)
    assert chosen[0] == chosen[1] and len(set(chosen[0])) == 3


def test_batches_of_one_bucket_are_close():
    for batch in range(1, 300):
        assert bucket(batch) <= batch < bucket(batch) * 1.13 + 1e-9 or batch == bucket(batch)
    assert [bucket(b) for b in (1, 7, 15)] == [1, 7, 15]


def test_an_unknown_width_is_tried_where_it_has_not_run():
    policy = Goodput((1, 2))
    for _ in range(2 * goodput.NEW_PERIOD):
        width = policy.choose(3, 0)
        policy.timed(width, 3, 1e-2)
    assert policy.times.seen(2, 3) >= goodput.BURST
