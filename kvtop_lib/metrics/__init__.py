"""Metrics and checks, computed from raw records; one metric, one formula, one unit."""

from kvtop_lib.metrics.point import Recording, derive
from kvtop_lib.metrics.quantile import percentile

__all__ = ["Recording", "derive", "percentile"]
