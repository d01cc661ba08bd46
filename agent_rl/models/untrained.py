"""Tokens that a model has never learned: their rows of the output matrix are those of many other tokens.

Vocabularies are larger than what pretraining saw: rows of tokens that never came stay where they began, within rounding
of each other, and get the same probability. A chat template may ask for such a token all the same. The kind is known
from Land and Bartolo (2024), "Fishing for Magikarp".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_rl.models.model_files import EMBEDDING, tensors

HEAD = "lm_head.weight"
NEAR, MANY = 0.05, 32
"""Rows so near to each other, as a share of the median row's length, and so many of them, are untrained."""
AT_ONCE = 8192
"""Rows that are read together."""
TYPES: Mapping[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def untrained(directory: Path, tokens: Collection[int]) -> dict[int, int]:
    """Those of the tokens that were never learned, each with the number of other tokens that have the same row.

    Reads the output matrix, or the embeddings where they are tied to it. Empty where no safetensors file holds it in a
    type of ``TYPES``. Raises Unreadable.
    """
    found = _output_matrix(directory)
    wanted = sorted(tokens)
    if found is None or not wanted or wanted[-1] >= len(found):
        return {}
    targets = _rows(found[wanted])
    of_targets, lengths, near = (targets**2).sum(1), [], []
    for start in range(0, len(found), AT_ONCE):
        rows = _rows(found[start : start + AT_ONCE])
        of_rows = (rows**2).sum(1)
        near.append(of_rows[:, None] + of_targets - 2 * rows @ targets.T)
        lengths.append(of_rows)
    limit = NEAR**2 * float(np.median(np.concatenate(lengths)))
    counts = (np.concatenate(near) < limit).sum(0) - 1  # one of them is the token's own
    return {token: int(count) for token, count in zip(wanted, counts, strict=True) if count >= MANY}


def _output_matrix(directory: Path) -> NDArray[Any] | None:
    """[vocabulary, width], mapped from its file."""
    places: dict[str, tuple[Path, Mapping[str, Any]]] = {}
    for file in directory.glob("*.safetensors"):
        header = tensors(file)
        places |= {name: (file, header[name]) for name in (HEAD, EMBEDDING) if name in header}
    for name in (HEAD, EMBEDDING):
        if name in places and (kind := TYPES.get((place := places[name])[1]["dtype"])):
            file, told = place
            with file.open("rb") as opened:
                begin = 8 + int.from_bytes(opened.read(8), "little") + told["data_offsets"][0]
            return np.memmap(file, kind, "r", begin, tuple(told["shape"]))
    return None


def _rows(stored: NDArray[Any]) -> NDArray[np.float32]:
    if stored.dtype == np.uint16:  # bfloat16: the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)
