"""The paper's tables and figures, made again: what each needs, what is there already, and what it costs."""
