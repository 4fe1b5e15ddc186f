"""What does the loss look like around the weights? Takes functions and data, never a trainer; changes nothing."""

from .sharpness import sharpness

__all__ = ["sharpness"]
