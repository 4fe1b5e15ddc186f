"""Which setting? Searches with Optuna, by any number of workers, judged on held-out training data."""
