"""Run records in, one page out."""

from esam.report.page import write_report
from esam.report.summaries import MethodSummary, Spread, summarise

__all__ = ["MethodSummary", "Spread", "summarise", "write_report"]
