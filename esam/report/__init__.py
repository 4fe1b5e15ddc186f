"""Run records in, one page out."""

from esam.report.page import write_report
from esam.report.table import Row, Spread, summarise

__all__ = ["Row", "Spread", "summarise", "write_report"]
