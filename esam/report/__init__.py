"""Run records in, one page out."""
