"""A loop whose rollouts are trees: a helper, two turns at once, a history that is rewritten."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio


async def rollout(problem: Any, model: Any, tools: Any) -> None:
    del tools
    asked = [{"role": "user", "content": problem.text}]
    said = await model(asked, max_tokens=6)
    helper = model.branch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(model, asked, max_tokens=6))
        nursery.start_soon(partial(helper, [{"role": "user", "content": "Help."}], max_tokens=6))
    await model([*asked, {"role": "assistant", "content": f"I said {said}"}, {"role": "user", "content": "Sure?"}])
