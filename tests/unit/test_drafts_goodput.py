"""The width controller against machines whose best width is known."""

import random

import pytest

from kvtop_lib.sglang_plugin.drafts import goodput
from kvtop_lib.sglang_plugin.drafts.estimates import ENOUGH, Times
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

    def mean_rate(self, width, batches):
        """Expected tokens per second of a fixed width over these iterations."""
        seconds = sum(self.seconds(width, b) for b in batches)
        return sum(batches) * self.tokens(width) / seconds

    def best(self, batch):
        return max(WIDTHS, key=lambda w: self.rate(w, batch))

    def run(self, policy, batches, iterations):
        """Mean rate over the iterations, as the policy chooses, by the true rates.

        `batches` : one batch size, or one for each iteration.
        """
        tokens = seconds = 0.0
        for batch in [batches] * iterations if isinstance(batches, int) else batches:
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


def wandering(rng, most, iterations):
    """Batch sizes as requests end and others take their places."""
    batch, sizes = most, []
    for _ in range(iterations):
        batch += rng.choice((1, 2)) if batch < most else 0
        batch = max(1, min(batch, most) - rng.choice((0,) * 9 + (1, 2, 3)))
        sizes.append(batch)
    return sizes


@pytest.mark.parametrize("chance", [0.3, 0.5, 0.7])
def test_a_load_reached_by_rising_is_served_well_at_once(chance):
    """A point of a sweep: loads rise on one server, and a window has some 150 iterations."""
    shares = {8: [], 16: [], 32: []}
    for seed in range(20):
        machine, policy, rng = Machine(chance, seed=seed), Goodput(WIDTHS), random.Random(seed)
        machine.run(policy, 1, 600)
        machine.run(policy, 4, 300)
        for most, found in shares.items():
            machine.run(policy, wandering(rng, most, 40), 0)
            sizes = wandering(rng, most, 150)
            got = machine.run(policy, sizes, 0)
            best = max(machine.mean_rate(w, sizes) for w in WIDTHS)
            found.append(got / best)
    means = {most: sum(found) / len(found) for most, found in shares.items()}
    assert min(means.values()) > 0.97, means


def test_a_width_beyond_a_worse_one_is_seldom_tried():
    machine, policy = Machine(0.5), Goodput(WIDTHS)
    assert machine.rate(4, 32) < machine.rate(2, 32) < 0.9 * machine.rate(1, 32)
    machine.run(policy, 32, 300)
    tried = {w: 0 for w in WIDTHS}
    for _ in range(4000):
        width = policy.choose(32, 0)
        tried[width] += 1
        policy.timed(width, 32, machine.seconds(width, 32))
    assert 0 < tried[4] <= 4000 / (goodput.SELDOM * goodput.LAST_PERIOD) * goodput.BURST + 3
    assert tried[1] > 0.98 * 4000


def test_a_peak_behind_a_valley_is_found_in_time():
    """Kernels with steps: width 2 is worse than both its neighbours."""
    policy, seconds = Goodput(WIDTHS), {1: 10e-3, 2: 25e-3, 4: 26e-3}
    last = None
    for _ in range(4000):
        last = policy.choose(8, 0)
        policy.timed(last, 8, seconds[last])
        for _ in range(4):
            policy.accepted("mtp", last - 1, last - 1)
    assert last == 4 and policy.rate(4, 8, 0) > policy.rate(1, 8, 0) > policy.rate(2, 8, 0)


def observed(cells, times=ENOUGH):
    found = Times(WIDTHS)
    for (width, batch), seconds in cells.items():
        for _ in range(times):
            found.observe(width, batch, seconds)
    return found


def test_a_width_that_has_not_run_is_compared_where_both_have():
    times = observed({(1, 16): 0.100, (2, 16): 0.160, (1, 8): 0.070, (2, 8): 0.090})
    assert times.predict(2, 16) == pytest.approx(0.160)
    assert times.predict(1, 12) == pytest.approx(0.085)  # in a line: nobody has run at 12
    for _ in range(3):
        times.observe(1, 24, 0.140)
    assert times.predict(2, 24) == pytest.approx(0.140 * 1.6)  # as at 16
    assert times.predict(4, 24) is None
    times.observe(1, 40, 0.2)
    assert times.predict(2, 40) is None  # 16 is too far, and at 24 only one has run


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


def test_batch_sizes_that_are_close_share_their_explorations():
    def explored(batches):
        machine, policy, count = Machine(0.7), Goodput(WIDTHS), 0
        for i in range(600):
            machine.run(policy, batches[i % len(batches)], 1)
            count += policy.reason == "explore"
        return count

    assert 0 < explored(range(24, 33)) <= 2 * explored([32])


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
