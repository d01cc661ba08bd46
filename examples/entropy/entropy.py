"""The paper's study of token entropy (section Analysis of Agentic Reasoning Behaviors): where the model decides.

    python examples/entropy/entropy.py RUN --step 1

draws rollouts of one RL step and prints JSON: for each kind of token the number, the mean entropy in nats and the share
that is high, and the words with the most high ones. High are the 20 % of a rollout's tokens with the highest entropy. A
reflection token is a high one among the first tokens of the turn after a tool's response, outside calls. A forking
token is any other high one. (The paper reads examples, and gives no rule.) ``gap`` is the mean absolute difference of
the log-probabilities from those that the tokens were sampled with: near 0 where the model is the policy that did.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import cyclopts
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from agent_rl import load_run
from agent_rl.messages import Tokens

CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
COMMENT = re.compile(r'(?:(?<=\\n)|(?<=[\s"]))#(?:[^"\\\n]|\\[^n])*')  # of Python, within JSON
WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")


@torch.no_grad()
def scores(model: Any, body: Tokens, temperature: float) -> Any:
    """Entropy and log-probability [2, n] of the n tokens of a response; NaN where the model wrote none."""
    found = np.full((2, len(body.tokens)), np.nan)
    for sequence in body.sequences:
        tokens = torch.from_numpy(sequence.tokens.astype(np.int64)).to(model.device)
        parts = [np.full((2, 1), np.nan)]  # no token is before the first one
        for logits, own in zip(model(tokens[None]).logits[0, :-1].split(1024), tokens[1:].split(1024), strict=True):
            said = torch.distributions.Categorical(logits=logits.float() / temperature)
            parts.append(torch.stack([said.entropy(), said.log_prob(own)]).cpu().numpy())
        found[:, sequence.own] = np.concatenate(parts, axis=1)[:, sequence.shared :]
    return np.where(body.loss_mask > 0, found, np.nan)


def kinds_and_words(texts: Sequence[str], mask: Any, called: set[int], window: int) -> Iterator[tuple[str, str]]:
    """Of each token of a response, by the texts that they add. ``called``: the turns with calls, from 1."""
    turn = 0
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]):
        text, after_tool, at = "".join(texts[start:end]), turn in called, 0
        turn += int(mask[start])
        spans = [(call, "call") for call in CALL.finditer(text)]
        spans += [(each, "comment") for call, _ in spans for each in COMMENT.finditer(text, *call.span())]
        kinds = {place: kind for each, kind in spans for place in range(*each.span())}
        words = {place: each[0].lower() for each in WORD.finditer(text) for place in range(*each.span())}
        for index, piece in enumerate(texts[start:end]):
            place = at + len(piece) - len(piece.lstrip()) if piece.strip() else at
            kind = kinds.get(place, "after_tool" if after_tool and index < window else "text")
            yield kind, words.get(place) or piece.strip() or repr(piece)[1:-1]
            at += len(piece)


def means(names: Any, entropy: Any, high: Any) -> dict[str, dict[str, float]]:
    """Of the tokens of each name: their number, the mean entropy, and the share that is high."""
    found, of, counts = np.unique(names, return_inverse=True, return_counts=True)
    rows = zip(found, counts, *(np.bincount(of, weights=each) / counts for each in (entropy, high)), strict=True)
    return {str(name): {"tokens": int(n), "entropy": float(nats), "high": float(part)} for name, n, nats, part in rows}


def study(
    run: Path, *, step: int = 0, rollouts: int = 64, model: Path | None = None, share: float = 0.2, window: int = 64,
    device: str = "cpu", seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """The figures of an RL step of the run (0: the last one), by default of the checkpoint nearest to its policy."""
    data = load_run(run)
    versions = [each.version - 1 for each in data.steps][step - 1 :][:1]
    groups = [data.trajectories_of(group.id) for group in data.groups if group.step in versions]
    there = [each for group in groups for each in group if each.newest is not None]
    if not there:
        sys.exit(f"{run} holds no rollout of this step: set run.keep_trajectories before the next run")
    drawn = random.Random(seed).sample(there, min(rollouts, len(there)))
    saved = [path.parent for path in run.glob("checkpoints/*version-*/config.json")] or [run / "model"]
    model = model or min(saved, key=lambda path: abs(int("0" + path.name.partition("version-")[2][:6]) - versions[0]))
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto").to(device).eval()
    decode = partial(Tokenizer.from_file(str(model / "tokenizer.json")).decode, skip_special_tokens=False)
    rows: list[tuple[str, str, float, bool, float]] = []
    for each in drawn:
        body, called = each.tokens(), {call.turn for call in each.transcript.calls}
        nats, logprobs = scores(loaded, body, data.settings.get("algorithm.temperature", 1.0))
        pairs = pairwise([*body.prompt_tokens[-1:].tolist(), *body.tokens.tolist()])
        texts = [decode(pair)[len(decode(pair[:1])) :] for pair in pairs]  # alone, some lose a blank
        turns = {place for place, turn in enumerate(each.stored.turn_order, 1) if turn in called}
        most = {*np.argsort(-nats)[: math.ceil(share * np.isfinite(nats).sum() - 1e-9)].tolist()}
        for index, of in enumerate(kinds_and_words(texts, body.loss_mask > 0, turns, window)):
            if np.isfinite(nats[index]):
                rows.append((*of, nats[index], index in most, abs(logprobs[index] - body.logprobs[index])))
    kinds, words, entropy, high, gaps = map(np.array, zip(*rows, strict=True))
    found: dict[str, Any] = {"rollouts": len(drawn), "version": versions[0], "model": str(model), "gap": gaps.mean()}
    found |= {"tokens": len(rows), "entropy": entropy.mean(), "high": high.mean(), "kinds": means(kinds, entropy, high)}
    for name, some in (("forking", kinds != "after_tool"), ("reflection", kinds == "after_tool")):
        of_word = means(words[some], entropy[some], high[some])
        excess = {word: each["tokens"] * (each["high"] - high.mean()) for word, each in of_word.items()}
        leading = sorted(of_word, key=lambda word: -excess[word])[:40]
        found[name] = {word: of_word[word] for word in leading if excess[word] > 0}
    return found


if __name__ == "__main__":
    json.dump(cyclopts.run(study, result_action="return_value"), sys.stdout, indent=1)
