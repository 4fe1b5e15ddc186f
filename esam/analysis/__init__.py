"""What does the loss look like around the weights? Takes functions and data, never a trainer; changes nothing.

Eigenvalues need scipy and the pictures of ``esam.analysis.plot`` need matplotlib: the extra ``analysis``.
"""

from .directions import filter_normalised, gaussian, random_plane, sam_eps
from .hessian import hessian_trace, spectral_density, top_eigenvalues
from .landscape import Landscape, even_axis, landscape
from .objective import ModelObjective, Objective
from .rounding import rounded, rounded_accuracy
from .selection import gradient_cosines, select
from .sharpness import adaptive_sharpness, ascent_sharpness, linearity, m_sharpness, sharpness

__all__ = [
    "Landscape",
    "ModelObjective",
    "Objective",
    "adaptive_sharpness",
    "ascent_sharpness",
    "even_axis",
    "filter_normalised",
    "gaussian",
    "gradient_cosines",
    "hessian_trace",
    "landscape",
    "linearity",
    "m_sharpness",
    "random_plane",
    "rounded",
    "rounded_accuracy",
    "sam_eps",
    "select",
    "sharpness",
    "spectral_density",
    "top_eigenvalues",
]
