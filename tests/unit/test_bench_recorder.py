"""The table of the recorder's cost, from times given by hand."""

from kvtop_lib.bench.recorder import order, own_shares, table


def test_on_and_off_alternate_so_that_a_drift_favours_neither():
    assert order(3) == [True, False, False, True, True, False]


def test_the_table_compares_medians_and_names_the_spread():
    off, on = [{1: 0.0100}, {1: 0.0104}], {1: 0.0105}
    samples = [(True, on), (False, off[0]), (False, off[1]), (True, on)]
    head, line = table(samples, {1: [0.002, 0.004, 0.009]})
    assert head.startswith("requests")
    assert line.split() == ["1", "10.20", "10.50", "+2.94%", "3.92%", "0.400%"]


def test_the_recorder_s_own_part_is_of_decoding_iterations_of_one_batch():
    def record(bs, mode, **parts):
        return {"bs": bs, "mode": mode, "dur_s": 0.010, "parts": parts}

    records = [
        record(1, "verify", record=0.0001, verify=0.009),
        record(1, "prefill", record=0.005),
        record(8, "decode", record=0.003),
        record(1, "decode", target=0.009),
    ]
    assert own_shares(records, 1) == [0.01, 0.0]
