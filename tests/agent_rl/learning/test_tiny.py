"""The tiny tokenizer loses nothing, and the tiny model loads like any other."""

import itertools
import random
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import END, MARKUP, ROLES, WORDS, build_tokenizer, initialise_model
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.rollout.supervised import demonstrated
from examples.quickstart.arithmetic import Arithmetic, ArithmeticTasks

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

TOKENIZER = build_tokenizer()
WITH_BYTES = build_tokenizer(byte_fallback=True)
PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " \n"


def demonstrations(count):
    return list(itertools.islice(ArithmeticTasks(0).demonstrations(random.Random(0)), count))


def conversations(count):
    return [list(demonstration.messages) for demonstration in demonstrations(count)]


def initialised(directory, seed=3, *, byte_fallback=False):
    spec = InitialiseModel(layers=2, hidden_size=32, mlp_size=48, head_dim=8, byte_fallback=byte_fallback)
    initialise_model(spec, directory, seed=seed)
    return directory


PRINTABLE_TEXTS = st.lists(st.one_of(st.text(alphabet=PRINTABLE, max_size=12), st.sampled_from((*MARKUP, *WORDS)))).map(
    "".join
)


@given(PRINTABLE_TEXTS, st.text(max_size=40))
def test_printable_text_and_with_byte_fallback_all_text_survives(printable, text):
    for tokenizer, given_text in ((TOKENIZER, printable), (WITH_BYTES, printable), (WITH_BYTES, text)):
        tokens = tokenizer.encode(given_text, add_special_tokens=False)
        assert tokenizer.decode(tokens) == given_text
        assert tokenizer.unk_token_id not in tokens


@given(st.text(max_size=20))
def test_no_text_fails_and_unknown_characters_become_unknown_tokens(text):
    tokens = TOKENIZER.encode(f"é{text}", add_special_tokens=False)
    assert TOKENIZER.unk_token_id in tokens
    assert max(tokens) < len(TOKENIZER)


def test_byte_fallback_changes_no_other_token():
    text = "A shop has 12 eggs: \\boxed{3}\n"
    assert WITH_BYTES.encode(text) == [
        token if token < TOKENIZER.vocab_size else token + 256 for token in TOKENIZER.encode(text)
    ]
    assert len(WITH_BYTES) == len(TOKENIZER) + 256
    assert len(WITH_BYTES.encode("設é", add_special_tokens=False)) == 5  # the bytes of their UTF-8
    assert WITH_BYTES.decode(WITH_BYTES.encode("設", add_special_tokens=False)[:1]) == "\ufffd"


def test_digits_are_single_tokens_and_frames_and_words_one_each():
    assert len(TOKENIZER.encode("1234567890", add_special_tokens=False)) == 10
    assert all(len(TOKENIZER.encode(piece, add_special_tokens=False)) == 1 for piece in (*MARKUP, *WORDS))
    assert len(set(MARKUP + WORDS)) == len(MARKUP + WORDS)
    assert len(TOKENIZER) < 160


def test_every_word_token_is_used_by_the_tasks():
    shown = {token for messages in conversations(600) for token in TOKENIZER.apply_chat_template(messages)["input_ids"]}
    tokens = {piece: TOKENIZER.convert_tokens_to_ids(piece) for piece in (*MARKUP, *WORDS)}
    assert [piece for piece, token in tokens.items() if token not in shown] == []


def test_any_tokens_decode_to_the_text_of_their_parts():
    rng = random.Random(0)
    tokens = [rng.randrange(len(TOKENIZER)) for _ in range(500)]
    assert TOKENIZER.decode(tokens) == "".join(TOKENIZER.decode([token]) for token in tokens)


def test_a_conversation_so_far_is_a_prefix_of_what_it_becomes():
    for messages in conversations(20):
        rendered = [TOKENIZER.apply_chat_template(messages[:end])["input_ids"] for end in range(1, len(messages) + 1)]
        assert all(longer[: len(shorter)] == shorter for shorter, longer in itertools.pairwise(rendered))
        prompt = TOKENIZER.apply_chat_template(messages[:1], add_generation_prompt=True)["input_ids"]
        assert rendered[-1][: len(prompt)] == prompt
        assert len(rendered[-1]) <= 256


def test_the_chat_format_finds_the_same_tokens_and_mask_as_the_template():
    chat = ChatFormat(TOKENIZER, {"": Arithmetic(seed=0, base=Path())})
    assert chat.end_of_turn == TOKENIZER.eos_token_id
    for shown in demonstrations(20):
        [(tokens, mask)] = demonstrated(chat, shown)
        messages = list(shown.messages)
        expected = TOKENIZER.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        assert tokens[: len(expected["input_ids"])] == expected["input_ids"]
        assert mask[: len(expected["assistant_masks"])] == expected["assistant_masks"]
        assert len(tokens) == len(expected["input_ids"])


def test_a_system_message_is_carried():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 * 7?"}]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == f"{ROLES['system']}Be brief.{END}{ROLES['user']}6 * 7?{END}{ROLES['assistant']}"


@pytest.mark.parametrize("made", [TOKENIZER, WITH_BYTES], ids=["plain", "bytes"])
def test_model_and_tokenizer_load_from_the_folder_and_generate(tmp_path, made):
    initialised(tmp_path, byte_fallback=made is WITH_BYTES)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.vocab_size == len(tokenizer) == len(made)
    assert model.dtype == torch.float32
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids(END)
    assert tokenizer.chat_template == made.chat_template
    text = "設 $a_1 < \\frac{1}{2}$ — “quoted” 😀"
    assert tokenizer.encode(text) == made.encode(text)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "12 * 34?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = model.generate(**prompt, max_new_tokens=5)
    assert prompt["input_ids"].shape[1] < written.shape[1] <= prompt["input_ids"].shape[1] + 5


def test_weights_are_a_function_of_the_seed_and_leave_torchs_randomness_alone(tmp_path):
    before = torch.random.get_rng_state()
    made = [initialised(tmp_path / str(number), seed) for number, seed in enumerate((3, 3, 4))]
    assert torch.equal(torch.random.get_rng_state(), before)
    first, same, other = ((folder / "model.safetensors").read_bytes() for folder in made)
    assert first == same != other
