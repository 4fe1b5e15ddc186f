"""What does the ESAM paper (Du et al., ICLR 2022) say, and what do we find?

``hyperparameters`` has the paper's own tables, and what stands for them on a CPU. Each table and figure has a file:
``table1`` ... ``figure4``, ``appendix2`` ... ``appendix7``. ``RULES.md`` says how claims are judged, ``rules`` does it.
"""
