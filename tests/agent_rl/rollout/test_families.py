"""Chat templates of real families (`families`): the table in the documents is what is found."""

from __future__ import annotations

import pytest

from agent_rl.rollout.prompts import ChatFormat, PromptError
from agent_rl.rollout.supervised import sequences
from tests.agent_rl.rollout import families
from tests.agent_rl.rollout.families import assistant, user

HEAD = "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' }}"
END = "{{ '<|im_end|>\\n' }}{%- endfor -%}"
ASKS = "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
THINKS = ASKS.replace("assistant", "assistant\\n<think>")
TEMPLATES = {
    "as is": f"{HEAD}{{{{ m.content }}}}{END}{ASKS}",
    "drops": f"{HEAD}{{{{ m.content.split('</think>')[-1] }}}}{END}{THINKS}",
    "field": f"{HEAD}{{%- if m.thinking %}}({{{{ m.thinking }}}}){{%- endif %}}{{{{ m.content }}}}{END}{ASKS}",
    "late": "{{ '<|im_start|>' + messages | length | string }}" + f"{HEAD}{{{{ m.content }}}}{END}{ASKS}",
    "raises": f"{HEAD}{{%- if loop.index == 4 %}}{{{{ raise_exception('two turns') }}}}{{%- endif %}}{{{{ m.content }}}}{END}{ASKS}",
}  # fmt: skip


@pytest.mark.skipif(not families.FOLDER.is_dir(), reason="the templates are not here: make .venv-clients/templates")
def test_the_table_of_families_is_what_is_found() -> None:
    found = list(families.families())
    assert families.page(found) == (families.ROOT / "docs/families.md").read_text("utf-8")
    assert families.counts(found) == {"families_exact": 34, "families_refused": 0, "families_wrong": 0}


def trained(template: str, *messages: dict[str, object]) -> list[str]:
    """The text of each sequence, what is trained in brackets."""
    chat = ChatFormat(families.tokenizer_of(TEMPLATES[template]))
    texts = []
    for tokens, mask in sequences(chat, list(messages)):
        pieces = [f"[{chat.decode([token])}]" if on else chat.decode([token]) for token, on in zip(tokens, mask, strict=True)]  # fmt: skip
        texts.append("".join(pieces).replace("][", "").replace("<|im_start|>", "<").replace("<|im_end|>", ">"))
    return texts


def test_turns_stand_as_the_template_puts_them() -> None:
    two = user("Q"), assistant("<think>\nT\n</think>\n\nA"), user("R"), assistant("B")
    assert trained("as is", *two) == [
        "<user\nQ>\n<assistant\n[<think>\nT\n</think>\n\nA>]\n<user\nR>\n<assistant\n[B>]"
    ]
    assert trained("drops", *two) == [
        "<user\nQ>\n<assistant\n<think>\n[T\n</think>\n\nA>]",
        "<user\nQ>\n<assistant\n\n\nA>\n<user\nR>\n<assistant\n[B>]",
    ]
    assert trained("field", user("Q"), assistant("A", thought="T")) == ["<user\nQ>\n<assistant\n[(T)A>]"]
    marked = user("Q"), assistant("A", train=False), user("R"), assistant("B")
    assert trained("as is", *marked) == ["<user\nQ>\n<assistant\nA>\n<user\nR>\n<assistant\n[B>]"]
    assert trained("as is", *marked[:2]) == []


@pytest.mark.parametrize(
    ("template", "messages", "said"),
    [
        ("as is", [user("Q"), assistant("A", thought="T")], "leaves out the thought of turn 1 of the assistant"),
        (
            "late",
            [user("Q"), assistant("A")],
            "with turn 1 of the assistant the chat template renders earlier messages",
        ),
        ("raises", [user("Q"), assistant("A")] * 2, "cannot render turn 2 of the assistant: two turns"),
    ],
)
def test_what_the_template_does_otherwise_is_refused(
    template: str, messages: list[dict[str, object]], said: str
) -> None:
    with pytest.raises(PromptError, match=said):
        trained(template, *messages)


def test_a_call_that_the_format_does_not_read_again_is_refused() -> None:
    class Fences(ChatFormat):
        @classmethod
        def calls(cls, text: str) -> tuple[()]:
            return ()

    chat = Fences(families.tokenizer_of(TEMPLATES["as is"]))
    with pytest.raises(
        PromptError, match=r"the calls of turn 1 of the assistant are not read again: 1 stand in the row"
    ):
        sequences(chat, [user("Q"), assistant(families.tagged("look", "a"))])
