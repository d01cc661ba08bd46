"""Models and data sets of the Hugging Face hub, by name (``organisation/name``): files from the cache, or fetched.

A model in the cache is used without a request to the hub. Other models take one request. When the hub does not answer
within `ANSWER_SECONDS`, the error says so and names remedies.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from agent_rl.files.disk import disk_errno
from agent_rl.models.model_files import ModelFiles, Unreadable, missing_shards

T = TypeVar("T")

ANSWER_SECONDS = 8.0
"""How long the hub may take to answer, including the time to connect."""
SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "README.md", "LICENSE*")
"""Configuration, tokenizer, chat template, and what says the licence."""
WEIGHTS = ("*.safetensors",)
NOT_OURS = ("*/*", "consolidated*.safetensors")
"""Left out: copies of the weights in other formats."""


class HubError(Exception):
    """A model or data set of the hub is not available; the message says why and what to do."""


def is_hub_name(name: str) -> bool:
    """Whether a name means a model of the hub: it reads ``organisation/name``, and no such directory is there."""
    looks_like_path = name.startswith((".", "/", "~")) or Path(name).is_dir()
    return not looks_like_path and re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def metadata(name: str) -> Path:
    """A directory with the model's configuration, tokenizer and template, and perhaps its weights. Raises HubError."""
    return _cached(name, SMALL, ("config.json",)) or _fetched(name, SMALL)


def described_model(name: str) -> ModelFiles:
    """What the files of a model directory, or of a name on the hub, say. Raises HubError and Unreadable."""
    return ModelFiles.read(metadata(name) if is_hub_name(name) else Path(name).expanduser())


def model_files(name: str, report: Callable[[str], object] = lambda _: None) -> Path:
    """A directory with the whole model; ``report`` gets a sentence before a download begins. Raises HubError."""
    directory = _cached(name, SMALL + WEIGHTS, ("config.json", "*.safetensors"))
    if directory is not None:
        return directory
    directory = _fetched(name, SMALL + WEIGHTS, report)
    if not any(directory.glob("*.safetensors")):
        raise HubError(
            f"{name} has no weights in the safetensors format on the hub; convert it, and name its directory"
        )
    return directory


def _cached(name: str, patterns: tuple[str, ...], needed: tuple[str, ...]) -> Path | None:
    """The model's directory in the cache; None when a file that ``needed`` names is missing."""
    from huggingface_hub import snapshot_download

    try:
        directory = Path(
            snapshot_download(
                name, local_files_only=True, allow_patterns=list(patterns), ignore_patterns=list(NOT_OURS)
            )
        )
    except (OSError, ValueError):  # huggingface_hub raises both; `_fetched` asks again and reports what is wrong
        return None
    try:
        whole = all(any(directory.glob(pattern)) for pattern in needed)
        return directory if whole and not ("*.safetensors" in needed and missing_shards(directory)) else None
    except Unreadable:
        return None


def _fetched(name: str, patterns: tuple[str, ...], report: Callable[[str], object] = lambda _: None) -> Path:
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    with _explained(name, "model"):
        if constants.HF_HUB_OFFLINE:
            raise LocalEntryNotFoundError(name)
        within(ANSWER_SECONDS, lambda: huggingface_hub.HfApi().model_info(name, timeout=ANSWER_SECONDS))
        report(f"fetching {name} from {constants.ENDPOINT}")
        directory = Path(
            huggingface_hub.snapshot_download(
                name, allow_patterns=list(patterns), ignore_patterns=list(NOT_OURS), etag_timeout=ANSWER_SECONDS
            )
        )
    if not (directory / "config.json").is_file():
        raise HubError(f"{name} at {constants.ENDPOINT} has no config.json; it must be a model for transformers")
    return directory


@contextmanager
def _explained(name: str, kind: Literal["model", "data set"]) -> Iterator[None]:
    """Turn errors of huggingface_hub about ``name`` into a HubError with the remedy."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    url = constants.ENDPOINT
    given = ", or give the directory of a model that is on disk" if kind == "model" else ""
    directory = f"neither a directory {name} nor a" if kind == "model" else "no"
    try:
        yield
    except GatedRepoError as error:
        remedy = "accept its conditions there and set HF_TOKEN (or run hf auth login)"
        raise HubError(f"{name} at {url} is open only to those who accepted its conditions; {remedy}{given}") from error
    except RepositoryNotFoundError as error:
        remedy = "look at the spelling; of a private one set HF_TOKEN (or run hf auth login)"
        whose = "of that name" if kind == "model" else name
        raise HubError(f"there is {directory} {kind} {whose} at {url}; {remedy}{given}") from error
    except RevisionNotFoundError as error:
        raise HubError(f"{name} at {url} has no such revision; name a branch, a tag or a commit{given}") from error
    except Exception as error:  # the error types of HTTP libraries change with versions
        if (number := disk_errno(error)) is not None:
            raise HubError(
                f"{name} cannot be written to the cache {constants.HF_HUB_CACHE}: {os.strerror(number)}; make room "
                "there, or point HF_HOME to another disk"
            ) from error
        if constants.HF_HUB_OFFLINE:
            raise HubError(
                f"{name} is not in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is "
                f"set; unset it, or point HF_HOME to the cache that has it{given}"
            ) from error
        if isinstance(error, EntryNotFoundError | OfflineModeIsEnabled) and not isinstance(
            error, LocalEntryNotFoundError
        ):
            raise HubError(f"{name} cannot be had from {url} ({_line(error)}){given}") from error
        cause = (error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None) or error
        remedy = "look at the network, set HF_ENDPOINT to a mirror, HF_HOME to a cache that has it"
        nothing = f"there is no directory {name}, and " if kind == "model" else ""
        raise HubError(
            f"{nothing}the hub at {url} cannot be asked for {name} ({_line(cause)}); {remedy}{given}"
        ) from error


def within(seconds: float, work: Callable[[], T]) -> T:
    """What ``work`` returns or raises. Raises TimeoutError when it takes longer: resolving a host may take minutes."""
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


@dataclass(frozen=True, slots=True)
class HubFiles:
    """What a data set holds at one commit.

    ``digests``: by path, the SHA-256 of a large file, or git's SHA-1 of a small one. ``configs`` and ``default`` are
    from the data set's card; both may be empty.
    """

    commit: str
    digests: Mapping[str, str]
    revision: str = ""
    """As asked for: the cache finds files again by this name when there is no hub to ask."""
    configs: Sequence[Mapping[str, Any]] = ()
    default: str = ""
    cached: Path | None = None
    """The snapshot in the cache when the hub is not to be asked (``HF_HUB_OFFLINE``)."""


def dataset_files(name: str, revision: str = "") -> HubFiles:
    """The files of a data set at a revision; the default one is the newest. Raises HubError."""
    import huggingface_hub
    from huggingface_hub import constants

    with _explained(name, "data set"):
        if constants.HF_HUB_OFFLINE:
            at = revision or None
            snapshot = Path(
                huggingface_hub.snapshot_download(name, repo_type="dataset", revision=at, local_files_only=True)
            )
            card = snapshot / "README.md"
            configs = _configs(huggingface_hub.DatasetCard.load(card).data if card.is_file() else None)
            paths = {path.relative_to(snapshot).as_posix(): path for path in snapshot.rglob("*") if path.is_file()}
            # The cache names its files by their digests.
            digests = {inside: path.resolve().name for inside, path in paths.items()}
            return HubFiles(snapshot.name, digests, revision, *configs, snapshot)
        api = huggingface_hub.HfApi()
        info = within(
            ANSWER_SECONDS,
            lambda: api.dataset_info(name, revision=revision or None, files_metadata=True, timeout=ANSWER_SECONDS),
        )
    files = {file.rfilename: file for file in info.siblings or ()}
    digests = {path: file.lfs.sha256 if file.lfs else file.blob_id or "" for path, file in files.items()}
    return HubFiles(info.sha or "", digests, revision, *_configs(info.card_data))


def _configs(card: Any) -> tuple[Sequence[Mapping[str, Any]], str]:
    listed = card.get("configs") if card else None
    configs = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    return configs, next((str(entry.get("config_name", "")) for entry in configs if entry.get("default")), "")


def dataset_file(name: str, path: str, of: HubFiles, report: Callable[[str], object] = lambda _: None) -> Path:
    """One file of a data set, from the cache or fetched, with the right checksum. Raises HubError.

    A file with another checksum is removed from the cache.
    """
    import huggingface_hub
    from huggingface_hub import constants

    with _explained(name, "data set"):
        if of.cached is None:
            report(f"fetching {path} of {name} from {constants.ENDPOINT}")
            for inside in ("README.md", path) if "README.md" in of.digests else (path,):
                file = Path(
                    huggingface_hub.hf_hub_download(
                        name, inside, repo_type="dataset", revision=of.revision or None, etag_timeout=ANSWER_SECONDS
                    )
                )
        else:
            file = of.cached / path
    expected = of.digests[path]
    digest = hashlib.new("sha256" if len(expected) == 64 else "sha1")
    if len(expected) == 40:  # as git names a file
        digest.update(b"blob %d\0" % file.stat().st_size)
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    if expected and digest.hexdigest() != expected:
        file.resolve().unlink()
        file.unlink(missing_ok=True)
        raise HubError(
            f"{path} of {name} has the checksum {digest.hexdigest()}, but the hub says {expected}: the copy was "
            "removed from the cache; fetch again, and if it stays so, look at the mirror that HF_ENDPOINT names"
        )
    return file
