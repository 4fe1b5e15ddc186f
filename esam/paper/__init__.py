"""What does the ESAM paper say, and what do we find?

``items/`` has a module for each table and figure, ``scales`` the two sizes at which they are made, ``claims`` what the
paper says, ``verdicts`` the rules that judge it, and ``engine/`` whatever makes an item.
"""
