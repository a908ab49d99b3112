"""Metrics and checks, computed from raw records; one metric, one formula, one unit."""

from kvtop_lib.metrics.point import Recording, derive, summary
from kvtop_lib.metrics.quantile import percentile, percentiles
from kvtop_lib.metrics.table import METRICS, Metric

__all__ = ["METRICS", "Metric", "Recording", "derive", "percentile", "percentiles", "summary"]
