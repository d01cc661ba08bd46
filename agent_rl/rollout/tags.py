"""Counts of the tags in a response's text, for ``resampling = "release"`` (`agent_rl.groups.release`).

The authors' code selects by the decoded response, which begins after the prompt. So it counts tags wherever they stand,
also where the model quotes them, and the header of the first turn is not in the text.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_rl.messages import TagCounts


def tag_counts(text: str) -> TagCounts:
    """Count the tags of a response, control tokens included."""
    responses = list(_spans(text, "<tool_response>", "</tool_response>"))
    return TagCounts(
        tool_responses=len(responses),
        error_responses=sum("error" in response.lower() for response in responses),
        answers_opened=text.count("<answer>"),
        answers_closed=text.count("</answer>"),
        answers=sum(1 for _ in _spans(text, "<answer>", "</answer>")),
        turns=sum(1 for _ in _spans(text, "<|im_start|>assistant", "<|im_end|>")),
    )


def _spans(text: str, start: str, end: str) -> Iterator[str]:
    """The text between each ``start`` and the next ``end``; a ``start`` within such a span begins none."""
    at = 0
    while (begin := text.find(start, at)) >= 0 and (until := text.find(end, begin + len(start))) >= 0:
        yield text[begin + len(start) : until]
        at = until + len(end)
