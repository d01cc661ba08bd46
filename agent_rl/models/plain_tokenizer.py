"""A tokenizer with its chat template, from a model's files, without transformers: for checks before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_rl.models.model_files import ModelFiles, Unreadable, read_json
from agent_rl.models.template_trial import compiled

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class PlainTokenizer:
    """The part of a transformers tokenizer that `agent_rl.rollout.prompts.ChatFormat` uses."""

    def __init__(self, backend: Tokenizer, template: str, special: Mapping[str, str]) -> None:
        """``special`` has the text of ``eos_token`` and other special tokens. Raises jinja2.TemplateSyntaxError."""
        self.backend_tokenizer, self.chat_template, self._special = backend, template, special
        self._template = compiled(template)
        self.added_tokens_decoder = backend.get_added_tokens_decoder()
        self.all_special_tokens = [*special.values()]
        self.eos_token_id = backend.token_to_id(special.get("eos_token", ""))

    @classmethod
    def read(cls, files: ModelFiles, template: str | None) -> PlainTokenizer | None:
        """The tokenizer of a model; None where it has no ``tokenizer.json``, which only transformers can do without.

        ``template`` is a chat template in place of the model's own. Raises Unreadable.
        """
        from tokenizers import Tokenizer

        file = files.directory / "tokenizer.json"
        template = files.own_template() if template is None else template
        if template is None or not file.is_file():
            return None
        settings = files.directory / "tokenizer_config.json"
        named = read_json(settings) if settings.is_file() else {}
        texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
        special = {key: text for key, text in texts.items() if key.endswith("_token") and isinstance(text, str)}
        try:
            return cls(Tokenizer.from_file(str(file)), template, special)
        except Exception as error:  # the library raises nothing more exact
            raise Unreadable(f"{file} cannot be read ({error})") from error

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """A conversation as text; ``tokenize`` is False. Raises jinja2.TemplateError."""
        assert not tokenize
        return self._template.render(
            messages=messages, add_generation_prompt=add_generation_prompt, tools=tools, documents=None, **self._special
        )

    def decode(self, tokens: Sequence[int], **options: Any) -> str:
        """The text of tokens."""
        return self.backend_tokenizer.decode(tokens, **options)
