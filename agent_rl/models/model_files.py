"""Read and check a Hugging Face model directory without torch or transformers.

::

    directory --> config.json, tokenizer.json, chat template, headers of *.safetensors --> ModelFiles.faults()

Everything is read as JSON, text, or a header of a few kilobytes, so that a model of any size is checked within a
second.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from agent_rl.files import reading_json
from agent_rl.models import architectures
from agent_rl.models.template_trial import template_fault

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
)
INDEX = "model.safetensors.index.json"
EMBEDDING = "model.embed_tokens.weight"
HEADER_BYTES = 100_000_000
"""The longest header that safetensors allows."""
SAVE_AGAIN = "save the model again, or copy it whole"
MEND = "mend it, or name another as chat_template in [model]"

Finding = tuple[str, str]
"""What is wrong, and the remedy."""


class Unreadable(Exception):  # noqa: N818 - named for what it is
    """A file of the model cannot be read; the message names it."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file.

    Raises Unreadable, naming the file, for anything else, numbers of thousands of digits included.
    """
    try:
        value = reading_json.read_json(path)
    except (OSError, reading_json.JsonError) as error:
        raise Unreadable(f"{path} cannot be read as JSON ({error})") from error
    if not isinstance(value, dict):
        raise Unreadable(f"{path} holds a JSON {type(value).__name__}, not an object")
    return value


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's directory and its config.json (for a multimodal model, the text part of it)."""

    directory: Path
    config: Mapping[str, Any]

    @classmethod
    def read(cls, directory: Path) -> ModelFiles:
        """Raises Unreadable when config.json is missing or no JSON object."""
        config = read_json(directory / "config.json")
        text = config.get("text_config")
        return cls(directory, {**config, **text} if isinstance(text, dict) else config)

    @property
    def length(self) -> int | None:
        """Tokens a sequence may have, prompt included, within a sliding window; None when config.json does not say."""
        length = self.config.get("max_position_embeddings")
        if not isinstance(length, int) or not _is_size(length):
            return None
        return min(length, architectures.window(self.config) or length)

    @property
    def dtype(self) -> Literal["float32", "bfloat16"]:
        """The data type that weights are served in: bfloat16 where they are stored so, else float32."""
        stored = self.config.get("dtype", self.config.get("torch_dtype"))
        return "bfloat16" if stored == "bfloat16" else "float32"

    def end_tokens(self) -> frozenset[int]:
        """The tokens that end a turn by generation_config.json; none without it. Raises Unreadable."""
        file = self.directory / "generation_config.json"
        ends = read_json(file).get("eos_token_id") if file.is_file() else None
        numbers = ends if isinstance(ends, list) else [] if ends is None else [ends]
        size = self.config.get("vocab_size")
        known = range(size if isinstance(size, int) and _is_size(size) else sys.maxsize)
        if not all(type(number) is int and number in known for number in numbers):
            raise Unreadable(f"{file}: eos_token_id is {ends!r:.60}, not the number of a token or a list of numbers")
        return frozenset(numbers)

    def faults(self, *, template: bool = True, weights: bool = True) -> Iterator[Finding]:
        """All that is wrong. ``template``: its own chat template is used; ``weights``: they are here."""
        yield from self._config_faults()
        yield from self.files_missing(weights=weights)
        yield from self._tokenizer_faults()
        if template and self._has_tokenizer():  # what is missing is else the tokenizer, and with it the template
            yield from self._template_faults()
        try:
            self.end_tokens()
        except Unreadable as error:
            yield str(error), SAVE_AGAIN
        if weights:
            yield from self._weight_faults()

    def files_missing(self, *, weights: bool = True) -> Iterator[Finding]:
        """Whether there is a tokenizer and, where they are to be here, weights."""
        if weights and not any(file for pattern in WEIGHT_FILES for file in self.directory.glob(pattern)):
            message = f"{self.directory} has no weights ({' or '.join(WEIGHT_FILES)})"
            yield message, "save the model's weights beside its config.json"
        if not self._has_tokenizer():
            message = f"{self.directory} has no tokenizer ({' or '.join(TOKENIZER_FILES)})"
            yield message, "save the tokenizer beside the model"

    def _has_tokenizer(self) -> bool:
        return any((self.directory / name).is_file() for name in TOKENIZER_FILES)

    def vocabulary(self) -> dict[str, int]:
        """The tokens in tokenizer.json with their numbers; empty without that file. Raises Unreadable."""
        file = self.directory / "tokenizer.json"
        return _tokens(read_json(file)) if file.is_file() else {}

    @property
    def tokens(self) -> int | None:
        """How many of the model's tokens have a text; None where all have, as far as is known. Raises Unreadable.

        Vocabularies are padded to a round number: what the tokenizer does not know is never sampled.
        """
        known, size = max(self.vocabulary().values(), default=-1) + 1, self.config.get("vocab_size")
        return known if isinstance(size, int) and 0 < known < size else None

    def _config_faults(self) -> Iterator[Finding]:
        file, config = self.directory / "config.json", self.config
        kind = config.get("model_type")
        known = causal_models()
        if not isinstance(kind, str):
            yield f"{file} has no model_type", "it must be the config.json of a language model"
        elif known and kind not in known:
            newer = f"transformers {_installed('transformers')} knows no causal language model of that kind"
            yield (
                f"{file} says model_type {kind!r}, and {newer}",
                "choose another model, or install a newer transformers",
            )
        for name in SIZES:
            value = config.get(name)
            if value is not None and not all(map(_is_size, value if isinstance(value, list) else [value])):
                yield f"{file}: {name} is {value!r:.60}", "it must be a whole number of at least 1"
        for name in ("vocab_size", "max_position_embeddings"):
            if not _is_size(config.get(name)):
                fault = f"{name} is {config[name]!r:.60}" if name in config else f"{name} is missing"
                yield f"{file}: {fault}", "it must be a whole number of at least 1"
        kinds = config.get("layer_types")
        if kinds is not None and not (isinstance(kinds, list) and all(isinstance(each, str) for each in kinds)):
            yield f"{file}: layer_types is {kinds!r:.60}", "it must be a list of texts"
        heads, shared, width = (config.get(n) for n in ("num_attention_heads", "num_key_value_heads", "hidden_size"))
        if isinstance(heads, int) and _is_size(shared) and heads % int(shared or 1):
            yield f"{file}: {heads} num_attention_heads do not share {shared} num_key_value_heads evenly", SAVE_AGAIN
        if isinstance(width, int) and _is_size(heads) and config.get("head_dim") is None and width % int(heads or 1):
            yield f"{file}: hidden_size {width} is no multiple of {heads} num_attention_heads", SAVE_AGAIN

    def _tokenizer_faults(self) -> Iterator[Finding]:
        file = self.directory / "tokenizer.json"
        if not file.is_file():
            return
        try:
            largest = max(_tokens(read_json(file)).values(), default=-1)
        except Unreadable as error:
            yield str(error), "save the tokenizer again"
            return
        vocabulary = self.config.get("vocab_size")
        if isinstance(vocabulary, int) and largest >= vocabulary:
            yield (
                f"{file} has tokens up to {largest}, and the model's vocab_size is {vocabulary}",
                "save the tokenizer that belongs to the model beside it",
            )

    def _template_faults(self) -> Iterator[Finding]:
        try:
            template = self.own_template()
        except Unreadable as error:
            yield str(error), "save the tokenizer again"
            return
        if template is None:
            yield (
                f"{self.directory} has no chat template",
                "use an instruction-tuned model, or name a template as chat_template in [model]",
            )
        elif fault := template_fault(template):
            yield f"the chat template of {self.directory} {fault}", MEND

    def own_template(self) -> str | None:
        """The tokenizer's chat template; of several, the one named default; or None. Raises Unreadable."""
        file = self.directory / "chat_template.jinja"
        if file.is_file():
            return read_template(file)
        named: Any = None
        for name in ("chat_template.json", "tokenizer_config.json"):
            if (self.directory / name).is_file():
                named = named or read_json(self.directory / name).get("chat_template")
        if isinstance(named, list):
            of = {each.get("name"): each.get("template") for each in named if isinstance(each, dict)}
            named = of.get("default", next(iter(of.values()), None))
        return named if isinstance(named, str) else None

    def _weight_faults(self) -> Iterator[Finding]:
        index = self.directory / INDEX
        try:
            if missing := missing_shards(self.directory):
                yield f"{index} names {missing[0]}, which is not there ({len(missing)} files missing)", SAVE_AGAIN
            for file in sorted(self.directory.glob("*.safetensors")):
                embedding = tensors(file).get(EMBEDDING)
                shape = embedding.get("shape") if isinstance(embedding, dict) else None
                expected = [self.config.get("vocab_size"), self.config.get("hidden_size")]
                if shape and all(map(_is_size, expected)) and shape != expected:
                    yield f"{file}: {EMBEDDING} has shape {shape}, and config.json says {expected}", SAVE_AGAIN
        except Unreadable as error:
            yield str(error), SAVE_AGAIN


def missing_shards(directory: Path) -> list[str]:
    """The missing files of weights that a model's index names; none without an index. Raises Unreadable."""
    index = directory / INDEX
    if not index.is_file():
        return []
    named = read_json(index).get("weight_map")
    files = {str(name) for name in named.values()} if isinstance(named, dict) else {"(no weight_map)"}
    return sorted(files - {file.name for file in directory.iterdir()})


def tensors(file: Path) -> dict[str, Any]:
    """The header of a safetensors file that is whole, by tensor. Raises Unreadable for any other."""
    try:
        with reading_json.open_file(file) as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = reading_json.parse_json(opened.read(length)) if 0 < length <= HEADER_BYTES else None
    except (OSError, reading_json.JsonError) as error:
        raise Unreadable(f"{file} is no safetensors file ({error})") from error
    if not isinstance(header, dict):
        raise Unreadable(f"{file} is no safetensors file (it has no header)")
    try:
        ends = [int(header[name]["data_offsets"][1]) for name in header if name != "__metadata__"]
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise Unreadable(f"{file} is no safetensors file (its header does not say where the tensors are)") from error
    if not ends:  # a loader would draw random weights in their place
        raise Unreadable(f"{file} holds no tensors")
    expected, size = 8 + length + max(ends), file.stat().st_size
    if size != expected:
        raise Unreadable(f"{file} is {size} bytes long, and its header says {expected}")
    return header


def weight_count(directory: Path) -> int | None:
    """The numbers in a model's safetensors files; None where there are none, or one cannot be read."""
    try:
        headers = [tensors(file) for file in directory.glob("*.safetensors")]
        shapes = [each["shape"] for header in headers for name, each in header.items() if name != "__metadata__"]
        return sum(math.prod(shape) for shape in shapes) or None
    except (Unreadable, KeyError, TypeError):
        return None


def read_template(file: Path) -> str:
    """The text of a template file. Raises Unreadable."""
    try:
        return reading_json.read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"{file} cannot be read ({error})") from error


def vocabulary_fault(vocabulary: Mapping[str, int], expected: Mapping[str, int]) -> str:
    """How tokens and their numbers differ from the ``expected`` ones; empty when all of these are there."""
    other = [token for token, number in expected.items() if vocabulary.get(token) != number]
    if not other:
        return ""
    return (
        f"has another vocabulary than the model: {len(other)} of {len(expected)} tokens differ, {other[0]!r} for "
        "instance; name a model that has the model's tokenizer"
    )


def _tokens(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of a tokenizer.json with their numbers."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    tokens: dict[Any, Any] = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    if isinstance(vocabulary, list):  # of pairs (token, score)
        tokens = {
            str(each[0]) if isinstance(each, list) and each else number: number
            for number, each in enumerate(vocabulary)
        }
    added = tokenizer.get("added_tokens")
    added = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    tokens |= {str(token.get("content")): token.get("id") for token in added}
    return {str(token): number for token, number in tokens.items() if isinstance(number, int)}


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


@cache
def causal_models() -> frozenset[str]:
    """The model types that the installed transformers has a causal language model for; empty when that is unknown.

    It is read from transformers' source, which takes milliseconds; importing it takes seconds, and torch with it.
    """
    spec = find_spec("transformers")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        try:
            source = (Path(place) / "models" / "auto" / "modeling_auto.py").read_text(encoding="utf-8")
        except OSError:
            continue
        table = source.partition("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict(")[2].partition("\n)")[0]
        return frozenset(re.findall(r'\(\s*"([^"]+)",', table))
    return frozenset()


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(unknown)"
