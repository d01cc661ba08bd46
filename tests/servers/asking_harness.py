"""A harness of verifiers, as users write one, and a rollout of it with verifiers' own training client."""

import asyncio
import json
import os
import sys

import openai
import verifiers.v1 as vf
from sums_taskset import SumData, SumTask


class AskingConfig(vf.HarnessConfig):
    pass


class Asking(vf.Harness[AskingConfig]):
    """It asks the task, and then once more."""

    APPENDS_SYSTEM_PROMPT, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        client = openai.AsyncOpenAI(base_url=endpoint, api_key=secret)
        messages = [{"role": "system", "content": data.system_prompt}, {"role": "user", "content": data.prompt}]
        for more in ("And one more?", None):
            reply = await client.chat.completions.create(model=ctx.model, messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            messages += [{"role": "user", "content": more}] if more else []
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def main(tokenizer: str) -> None:
    client = vf.TrainClientConfig(
        base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY", renderer_model_name=tokenizer
    )
    config = vf.AgentConfig(
        harness=AskingConfig(id="asking_harness"),
        runtime=vf.SubprocessConfig(),
        model=os.environ["AGENT_RL_MODEL"],
        client=client,
    )
    task = SumTask(SumData(prompt="What is 1 + 2?", system_prompt="Add.", answer="3"), vf.TaskConfig())
    trace = await vf.make_agent(config).run(task)
    (branch,) = trace.branches
    seen = {"errors": [str(each) for each in trace.errors], "reward": trace.reward, "turns": trace.num_turns}
    seen |= {"tokens": branch.token_ids, "mask": branch.sampled_mask, "logprobs": branch.logprobs}
    sys.stdout.write("\n" + json.dumps(seen) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

__all__ = ["Asking"]
