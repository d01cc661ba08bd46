"""A rollout of verifiers at a real gateway by its own training client: it tokenizes itself, and asks for tokens."""

import json
import os
from pathlib import Path

import pytest
import trio

from agent_rl.rollout.keys import MODEL
from tests.actors.gateway.stand import stand
from tests.clients.test_clients import LONGEST_SECONDS

ROOT = Path(__file__).parents[2]
VERIFIERS = ROOT / ".venv-verifiers"
SCRIPT = ROOT / "tests" / "servers" / "asking_harness.py"


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.skipif(
    not (VERIFIERS / "installed").is_file(), reason="verifiers is not here: make .venv-verifiers/installed"
)
async def test_the_training_client_of_verifiers_has_the_tokens_that_are_trained(tmp_path):
    texts = iter(("It is 4.", "3"))
    with trio.fail_after(LONGEST_SECONDS):
        async with stand(tmp_path, lambda *_: next(texts)) as at, at.rollout() as (key, episode):
            (tokenizer,) = {path.parent for path in tmp_path.rglob("tokenizer.json")}
            variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
            variables |= {"OPENAI_BASE_URL": f"{at.url}/v1", "OPENAI_API_KEY": key, "AGENT_RL_MODEL": MODEL}
            ended = await trio.run_process(
                [VERIFIERS / "bin" / "python", SCRIPT, tokenizer],
                env=variables,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
            assert ended.returncode == 0, ended.stderr.decode()
            seen = json.loads(ended.stdout.splitlines()[-1])
            assert (seen["errors"], seen["reward"], seen["turns"]) == ([], 2.0, 2)
            trained = episode.trajectory(generator="g", seconds=0.0).unpack()
    assert [strand.turns for strand in episode.strands] == [[1, 2]]
    prompt = len(seen["tokens"]) - len(trained.tokens)  # which no trajectory has
    assert seen["tokens"][prompt:] == trained.tokens.tolist()
    assert [int(each) for each in seen["mask"]] == [0] * prompt + trained.loss_mask.tolist()
    assert seen["logprobs"][prompt:] == pytest.approx((trained.logprobs * trained.loss_mask).tolist())
