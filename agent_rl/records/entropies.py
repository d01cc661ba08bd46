"""Entropies of tokens in a run directory, as `agent-rl analyze` computes them: one array for each rollout it has read.

No actor writes them and the journal has none: engines such as vLLM do not give them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from agent_rl.files.disk import whole
from agent_rl.messages import Float32Vector

FILE = "entropies.npz"


class EntropiesError(ValueError):
    """The file cannot be read; the message says what to do."""


def read_entropies(directory: Path) -> dict[str, Float32Vector]:
    """By rollout, the entropy in nats of each token of the response [n], NaN where the model wrote none.

    Empty where nothing was analyzed. Raises EntropiesError for a file that cannot be read.
    """
    path = directory / FILE
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name].astype(np.float32) for name in file.files}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise EntropiesError(f"{path} cannot be read ({error}): remove it, and run agent-rl analyze again") from error


def add_entropies(directory: Path, found: Mapping[str, Float32Vector]) -> None:
    """Add those of some rollouts to the file, as float16. Raises EntropiesError for a file that cannot be read."""
    both = read_entropies(directory) | dict(found)
    with whole(directory / FILE) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **{name: each.astype(np.float16) for name, each in both.items()})  # type: ignore[arg-type]
