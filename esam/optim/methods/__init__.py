"""Which methods are there? One a file, each a choice of the parts of a step."""
