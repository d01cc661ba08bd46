"""Models that are named as on the Hugging Face hub, ``organisation/name``: their files, from the cache or fetched, within a deadline.

What is in the cache is used as it is, without asking the hub. What is not is asked for once: a hub that cannot be reached is said
within `ANSWER_SECONDS`, with what helps.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agent_rl.models.model_files import Unreadable, missing_shards

T = TypeVar("T")

ANSWER_SECONDS = 8.0
"""How long the hub may take to say what it has of a name, connecting included."""
SMALL = ("*.json", "*.jinja", "*.txt", "*.model")
"""Configuration, tokenizer and chat template."""
WEIGHTS = ("*.safetensors",)
NOT_OURS = ("*/*", "consolidated*.safetensors")
"""Left out: copies of the weights in other formats."""


class HubError(Exception):
    """A model of the hub cannot be had; the message says why, and what helps."""


def is_hub_name(name: str) -> bool:
    """Whether a name means a model of the hub rather than a directory: ``organisation/name``, and no such directory is there."""
    looks_like_path = name.startswith((".", "/", "~")) or Path(name).is_dir()
    return not looks_like_path and re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def metadata(name: str) -> Path:
    """A directory with the model's configuration, tokenizer and template, and perhaps its weights. Raises HubError."""
    return _cached(name, SMALL, ("config.json",)) or _fetched(name, SMALL)


def model_files(name: str, told: Callable[[str], object] = lambda _: None) -> Path:
    """A directory with the whole model; ``told`` is called before a download begins. Raises HubError."""
    found = _cached(name, SMALL + WEIGHTS, ("config.json", "*.safetensors"))
    if found is not None:
        return found
    found = _fetched(name, SMALL + WEIGHTS, told)
    if not any(found.glob("*.safetensors")):
        raise HubError(
            f"{name} has no weights in the safetensors format on the hub; convert it, and name its directory"
        )
    return found


def _cached(name: str, patterns: tuple[str, ...], needed: tuple[str, ...]) -> Path | None:
    """What the cache holds, when that is all that ``needed`` names."""
    from huggingface_hub import snapshot_download

    try:
        found = Path(
            snapshot_download(
                name, local_files_only=True, allow_patterns=list(patterns), ignore_patterns=list(NOT_OURS)
            )
        )
    except (OSError, ValueError):  # huggingface_hub's errors are both; what is wrong is asked again, and said, below
        return None
    try:
        whole = all(any(found.glob(pattern)) for pattern in needed)
        return found if whole and not ("*.safetensors" in needed and missing_shards(found)) else None
    except Unreadable:
        return None


def _fetched(name: str, patterns: tuple[str, ...], told: Callable[[str], object] = lambda _: None) -> Path:
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    url = constants.ENDPOINT
    given = "or give the directory of a model that is on disk"
    if constants.HF_HUB_OFFLINE:
        raise HubError(
            f"{name} is not in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set; unset it, point "
            f"HF_HOME to the cache that has it, {given}"
        )
    try:
        within(ANSWER_SECONDS, lambda: huggingface_hub.HfApi().model_info(name, timeout=ANSWER_SECONDS))
        told(f"fetching {name} from {url}")
        found = Path(
            huggingface_hub.snapshot_download(
                name,
                allow_patterns=list(patterns),
                ignore_patterns=list(NOT_OURS),
                etag_timeout=ANSWER_SECONDS,
            )
        )
    except GatedRepoError as error:
        remedy = "accept its conditions there and set HF_TOKEN (or run hf auth login)"
        raise HubError(
            f"{name} at {url} is open to those alone who accepted its conditions; {remedy}, {given}"
        ) from error
    except RepositoryNotFoundError as error:
        remedy = "look at the spelling; of a private one set HF_TOKEN (or run hf auth login)"
        raise HubError(
            f"there is neither a directory {name} nor a model of that name at {url}; {remedy}, {given}"
        ) from error
    except (EntryNotFoundError, OfflineModeIsEnabled) as error:
        raise HubError(f"{name} cannot be had from {url} ({_line(error)}); {given.removeprefix('or ')}") from error
    except Exception as error:  # HTTP libraries have errors of their own, and they change with versions
        remedy = "look at the network, set HF_ENDPOINT to a mirror, HF_HOME to a cache that has it"
        raise HubError(
            f"there is no directory {name}, and the hub at {url} cannot be asked for it ({_line(error)}); {remedy}, {given}"
        ) from error
    if not (found / "config.json").is_file():
        raise HubError(f"{name} at {url} has no config.json; it must be a model for transformers")
    return found


def within(seconds: float, work: Callable[[], T]) -> T:
    """What ``work`` returns or raises. Raises TimeoutError when that takes longer: looking up a name may take minutes by itself."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            done.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    result, error = done[0]
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
