"""The table of the recorder's cost, from times given by hand."""

from kvtop_lib.bench.recorder import order, table


def test_on_and_off_alternate_so_that_a_drift_favours_neither():
    assert order(3) == [True, False, False, True, True, False]


def test_the_table_compares_medians_and_names_the_spread():
    off, on = [{1: 0.0100}, {1: 0.0104}], {1: 0.0105}
    head, line = table([(True, on), (False, off[0]), (False, off[1]), (True, on)])
    assert head.startswith("requests")
    assert line.split() == ["1", "10.20", "10.50", "+2.94%", "3.92%"]
