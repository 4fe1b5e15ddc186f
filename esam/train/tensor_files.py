"""How are tensors kept in a file of which nothing can run code? By safetensors, with JSON beside them in its head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from esam.extras import require
from esam.files import write_atomically


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors by name, and what is said about them; tensors that are shared are written for each name."""
    require("safetensors", purpose="keeping tensors")
    from safetensors.torch import save

    whole: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        here = tensor.detach().cpu().contiguous()
        storage = here.untyped_storage().data_ptr()
        whole[name] = here.clone() if storage in storages else here  # safetensors refuses shared memory
        storages.add(storage)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save(whole, metadata={"esam": json.dumps(about)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file by name, and what is said about them."""
    require("safetensors", purpose="reading tensors")
    from safetensors import safe_open
    from safetensors.torch import load_file

    try:
        with safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("esam", "{}"))
        return load_file(str(path)), about
    except Exception as error:  # the library has kinds of its own for a damaged file
        raise ValueError(f"{path} cannot be read ({error})") from error
