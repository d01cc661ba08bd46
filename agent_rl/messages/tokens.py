"""The body of a trajectory: its tokens and what belongs to each token, packed once by the generator.

::

    body   = layout, number of prompt tokens, of response tokens (and of branches), then each array of `Tokens`
    array  = its packing, its number of bytes, the bytes

A rollout is a tree. Its first sequence is the prompt and what follows; each branch goes on from an earlier sequence
after so many of its tokens, and has tokens of its own. The response is the tokens of the first sequence after the
prompt, then those of each branch, so that each token stands in it once. Without branches, the body has layout 1.

Policies and loss mask are runs of equal values. Tokens deflate to less than half. Log-probabilities do not, and stay
float32. Filter and journal pass a body on as it is; `Tokens.unpack` trusts none of its bytes.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Int32Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Int32Matrix: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Float32Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float32]]
Uint8Vector: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint8]]

LAYOUT, TREE = 1, 2
"""Of one sequence, and of several."""
HEADER = struct.Struct(">BII")
COUNT = struct.Struct(">I")
"""The number of branches, behind the header of a tree."""
PART = struct.Struct(">BI")
"""The header of each array: its packing, and its number of bytes."""
RAW, RUNS, DEFLATED = range(3)
SMALL = 2048
"""Arrays below so many bytes are left as they are."""
UNIT = 8
"""Runs consist of units of 8 bytes: one policy, or 8 tokens of a loss mask."""
WORTH = 0.75
"""An array is deflated when its samples shrink to less than this share."""
SAMPLE = 2048


class BodyError(ValueError):
    """A body that cannot be read; the message says what is wrong."""


class TokenSequence(NamedTuple):
    """A sequence of a rollout, shape [length]: ``shared`` tokens of the prompt or of an earlier sequence, then ``own``.

    ``own`` says where its own tokens stand in the response, and in what belongs to each of its tokens.
    """

    tokens: Int32Vector
    shared: int
    own: slice


NO_BRANCHES = np.zeros((0, 3), dtype=np.int32)


class Tokens(NamedTuple):
    """The tokens of a rollout, p of the prompt and n of the response (the model's and the tools').

    Shapes: ``prompt_tokens`` [p]; ``tokens`` [n]; ``loss_mask`` [n], 1 where the model wrote the token; ``logprobs``
    [n], natural logarithm under the distribution sampled from (temperature included), 0 where masked; ``policies``
    [n, 2], the (epoch, version) that sampled the token, or that was current when a tool's or the environment's token
    was appended; ``branches`` [b, 3]: the sequence that each goes on from (0 is the first), how many of its tokens it
    shares, and where its own tokens begin in the response.
    """

    prompt_tokens: Int32Vector
    tokens: Int32Vector
    loss_mask: Uint8Vector
    logprobs: Float32Vector
    policies: Int32Matrix
    branches: Int32Matrix = NO_BRANCHES

    @property
    def sequences(self) -> list[TokenSequence]:
        """The first sequence and the branches, each whole. Every token of the response is one's own."""
        edges = [0, *self.branches[:, 2].tolist(), len(self.tokens)]
        found = [TokenSequence(self.prompt_tokens, len(self.prompt_tokens), slice(0, edges[1]))]
        for (parent, shared, start), end in zip(self.branches.tolist(), edges[2:], strict=True):
            found.append(TokenSequence(_whole(found[parent], self.tokens)[:shared], shared, slice(start, end)))
        return [each._replace(tokens=_whole(each, self.tokens)) for each in found]

    @property
    def apart(self) -> list[Tokens]:
        """Each sequence as a rollout of its own, whose prompt is what it shares."""
        return [
            Tokens(
                whole.tokens[: whole.shared],
                self.tokens[whole.own],
                self.loss_mask[whole.own],
                self.logprobs[whole.own],
                self.policies[whole.own],
            )
            for whole in self.sequences
        ]

    @property
    def versions(self) -> tuple[int | None, int | None]:
        """The oldest and the newest version that the model wrote a token with; None where it wrote none."""
        written = self.policies[self.loss_mask > 0, 1]
        return (int(written.min()), int(written.max())) if len(written) else (None, None)

    def pack(self) -> bytes:
        """The body."""
        parts = [HEADER.pack(TREE if len(self.branches) else LAYOUT, len(self.prompt_tokens), len(self.tokens))]
        if len(self.branches):
            parts.append(COUNT.pack(len(self.branches)))
        for array in self if len(self.branches) else self[:-1]:
            way, packed = _packed(array.tobytes())
            parts += [PART.pack(way, len(packed)), packed]
        return b"".join(parts)

    @classmethod
    def unpack(cls, body: bytes) -> Tokens:
        """The tokens of a body; the arrays cannot be written to.

        Raises BodyError, also for token ids below 0, a loss mask of other values than 0 and 1, and branches that do not
        fit. Whether ids are in the model's vocabulary and log-probabilities finite, only the learner can say what
        follows from.
        """
        try:
            layout, prompt, response = HEADER.unpack_from(body)
            if layout not in {LAYOUT, TREE}:
                raise BodyError(f"its layout is {layout}, this version reads {LAYOUT} and {TREE}")
            at, branches = HEADER.size, 0
            if layout == TREE:
                (branches,), at = COUNT.unpack_from(body, at), at + COUNT.size
            arrays: list[Any] = []
            for kind, count in ((np.int32, prompt), (np.int32, response), (np.uint8, response), (np.float32, response)):
                content, at = _part(body, at, count * np.dtype(kind).itemsize)
                arrays.append(np.frombuffer(content, dtype=kind))
            content, at = _part(body, at, response * 8)
            arrays.append(np.frombuffer(content, dtype=np.int32).reshape(response, 2))
            if layout == TREE:
                content, at = _part(body, at, branches * 12)
                arrays.append(np.frombuffer(content, dtype=np.int32).reshape(branches, 3))
            found = cls(*arrays)
        except (struct.error, zlib.error, ValueError, IndexError) as error:
            raise BodyError(str(error)) from error
        if at != len(body):
            raise BodyError(f"{len(body) - at} bytes too many")
        if any((ids < 0).any() for ids in (found.prompt_tokens, found.tokens)):
            raise BodyError("token ids below 0")
        if (found.loss_mask > 1).any():
            raise BodyError("a loss mask of other values than 0 and 1")
        found._refuse_branches()
        return found

    def _refuse_branches(self) -> None:
        """Raise BodyError for a branch of a later sequence, of more tokens than there are, or without tokens."""
        starts = self.branches[:, 2].tolist()
        edges = [0, *starts, len(self.tokens)]
        lengths = [len(self.prompt_tokens) + edges[1]]
        for number, (parent, shared, start) in enumerate(self.branches.tolist()):
            end = edges[number + 2]
            if not (0 <= parent <= number and 0 <= shared <= lengths[parent] and 0 <= start < end <= len(self.tokens)):
                raise BodyError(f"branch {number + 1} does not fit: {parent}, {shared}, {start} to {end}")
            lengths.append(shared + end - start)


def _whole(sequence: TokenSequence, response: Int32Vector) -> Int32Vector:
    whole: Int32Vector = np.concatenate([sequence.tokens, response[sequence.own]])
    return whole


def _part(body: bytes, at: int, size: int) -> tuple[bytes, int]:
    """The next array of ``size`` bytes, and where it ends."""
    way, packed_size = PART.unpack_from(body, at)
    begin = at + PART.size
    packed = body[begin : begin + packed_size]
    if way == RUNS:
        content = _spread(packed, size)
    elif way == DEFLATED:
        content = zlib.decompressobj().decompress(packed, size + 1)
    else:
        content = packed
    if len(content) != size:
        raise BodyError(f"an array of {len(content)} bytes, where its lengths ask for {size}")
    return content, begin + packed_size


def _packed(content: bytes) -> tuple[int, bytes]:
    if len(content) < SMALL:
        return RAW, content
    units = np.frombuffer(content, dtype=np.uint64, count=len(content) // UNIT)
    ends = np.append(np.flatnonzero(units[1:] != units[:-1]), len(units) - 1)
    if 2 * len(ends) < len(units) // 8:
        rest = content[len(units) * UNIT :]
        return RUNS, b"".join([bytes([len(rest)]), rest, ends.astype(np.uint32).tobytes(), units[ends].tobytes()])
    middle = (len(content) - SAMPLE) // 2
    sample = content[:SAMPLE] + content[middle : middle + SAMPLE] + content[-SAMPLE:]
    if len(zlib.compress(sample, 1)) < WORTH * len(sample):
        return DEFLATED, zlib.compress(content, 1)
    return RAW, content


def _spread(packed: bytes, size: int) -> bytes:
    extra = packed[0]
    runs = (len(packed) - 1 - extra) // (4 + UNIT)
    ends = np.frombuffer(packed, dtype=np.uint32, count=runs, offset=1 + extra).astype(np.int64)
    units = np.frombuffer(packed, dtype=np.uint64, count=runs, offset=1 + extra + 4 * runs)
    lengths = np.diff(ends, prepend=-1)
    if lengths.sum() != size // UNIT or (lengths < 1).any():
        raise BodyError("runs of other lengths than it says")
    return np.repeat(units, lengths).tobytes() + packed[1 : 1 + extra]
