"""Rows for tokens that a model has never learned (`agent_rl.models.untrained`)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_rl.files.disk import whole
from agent_rl.models.model_files import Unreadable


def spelt_rows(directory: Path, out: Path, texts: Collection[str]) -> dict[str, list[str]]:
    """Write the model with rows for these tokens that are the mean of the rows of their spelling.

    Returns each token's spelling. In the embeddings and, where it is another, in the output matrix. Raises Unreadable
    for a text that is no token of the model, and DiskError.
    """
    tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=False, dtype="auto")
    spelt: dict[str, list[str]] = {}
    matrices = {id(each.weight): each.weight for each in (model.get_input_embeddings(), model.get_output_embeddings())}
    with torch.no_grad():
        for text in texts:
            token = tokenizer.convert_tokens_to_ids(text)
            if token is None or token == tokenizer.unk_token_id or len(text) < 2:
                raise Unreadable(f"{text!r} is no token of {directory} that can be spelt with others")
            pieces = [  # apart, since together they are the token
                piece for part in (text[:1], text[1:]) for piece in tokenizer.encode(part, add_special_tokens=False)
            ]
            spelt[text] = tokenizer.convert_ids_to_tokens(pieces)
            for matrix in matrices.values():
                matrix[token] = matrix[pieces].float().mean(0)
    with whole(out) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    return spelt
