"""Which method for which price? Methods and controls, tuned alike, in regimes that differ in kind."""
