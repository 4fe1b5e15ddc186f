"""How is an item of the paper made: which runs are there, which are missing, what do they cost?"""
