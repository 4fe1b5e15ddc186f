"""What makes sharpness-aware training worse here? Some steps are watched, and each finding comes with its remedy.

```python
with watching(optimizer) as watch:
    for rows in order[:40]:
        watch.samples(rows)  # optional: which samples of the data set the next step takes
        optimizer.step(closure)
for finding in watch.findings():
    print(finding)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from esam.optim import SharpnessAware
from esam.optim.guidance import Finding, Watch

__all__ = ["Finding", "Watch", "watching"]


@contextmanager
def watching(optimizer: SharpnessAware) -> Iterator[Watch]:
    """Watch the steps that an optimizer takes inside this block; the steps are the same as without."""
    watch = Watch(optimizer)
    before, optimizer.watch = optimizer.watch, watch
    try:
        yield watch
    finally:
        optimizer.watch = before
