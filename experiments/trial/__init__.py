"""Which method is worth its price? A trial whose rules (PROTOCOL.md) were written before its runs."""
