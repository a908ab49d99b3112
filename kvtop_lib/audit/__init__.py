"""Audit of published throughput tables: what their own numbers say about active requests."""

from kvtop_lib.audit.findings import audit
from kvtop_lib.audit.report import report
from kvtop_lib.audit.table import read_table

__all__ = ["audit", "read_table", "report"]
