"""The results of an entropy study, as the page shows them and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent_rl.analysis.figures import DISTANCES, ENTROPIES, Scored, Study, scored, study
from agent_rl.analysis.moments import AnalysisError, Drawn, Moment
from agent_rl.analysis.tokens import Flags, Floats, read_tokens, texts
from agent_rl.files.disk import whole
from agent_rl.files.reading_json import json_value

FILE = "analysis.json"
PAGE = "analysis.html"
Decoder = Callable[[Sequence[int]], str]
"""The text of tokens, control tokens included."""


@dataclass(frozen=True, slots=True)
class Result:
    """A moment with its figures. ``model`` computed the entropies; its version is None where the user named it."""

    moment: Moment
    model: Path
    version: int | None
    study: Study
    rollouts: Sequence[Scored]

    def figures(self) -> dict[str, Any]:
        """Without words and curves."""
        kinds = {name: mean.figures() for name, mean in self.study.kinds.items()}
        return {
            "step": self.moment.step,
            "first_step": self.moment.first,
            "last_step": self.moment.last,
            "versions": self.moment.versions,
            "model": str(self.model),
            "model_version": self.version,
            "gap": self.study.gap,
            "rollouts": self.study.rollouts,
            **self.study.all.figures(),
            "threshold": self.study.threshold,
            "kinds": kinds,
        }


def decoder(model: Path) -> Decoder:
    """The decoder of a model's tokenizer. Raises AnalysisError when there is none that can be read."""
    from tokenizers import Tokenizer

    file = model / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises Exception itself
        raise AnalysisError(
            f"{file} cannot be read as a tokenizer ({error}); save the model's tokenizer there"
        ) from error
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))


def score(drawn: Drawn, entropy: Floats, logprob: Floats, decode: Decoder, *, share: float, window: int) -> Scored:
    """A rollout's tokens with a model's ``entropy`` and ``logprob``, both [n], NaN where the model wrote no token."""
    trajectory = drawn.trajectory
    body = trajectory.unpack()
    mask: Flags = body.loss_mask > 0
    answered = {call.turn for call in trajectory.transcript.calls}
    tokens = read_tokens(texts(body.tokens.tolist(), decode), mask, answered, window)
    gap = np.where(mask, logprob - body.logprobs.astype(np.float64), np.nan)
    return scored(tokens, entropy, gap, share, drawn.problem, drawn.reward)


def result(moment: Moment, model: Path, version: int | None, rollouts: Sequence[Scored]) -> Result:
    """A moment's result."""
    return Result(moment, model, version, study(rollouts), rollouts)


def write_results(path: Path, settings: Mapping[str, Any], results: Sequence[Result], notes: Sequence[str]) -> None:
    """Write settings, figures, curves and words as JSON, whole or not at all. Raises DiskError."""
    moments = {
        each.moment.name: each.figures()
        | {
            "since_response": {
                "edges": DISTANCES,
                "groups": [mean.figures() for mean in each.study.since],
            },
            "histogram": {"edges": ENTROPIES, "tokens": each.study.histogram},
            "words": {
                name: [asdict(word) for word in getattr(each.study, name)]
                for name in ("forking", "reflection", "lowest")
            },
        }
        for each in results
    }
    body = {"settings": dict(settings), "notes": list(notes), "moments": moments}
    with whole(path) as partial:
        partial.write_text(
            json.dumps(json_value(body), ensure_ascii=False, indent=1, allow_nan=False) + "\n",
            encoding="utf-8",
            errors="backslashreplace",
        )
