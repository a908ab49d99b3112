"""Benches: ratios of times inside one run, printed by ``make bench``; nothing is asserted."""
