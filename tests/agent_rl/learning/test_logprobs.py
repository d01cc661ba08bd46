"""Log-probabilities in pieces: equal to the plain ones, with their gradients; and the memory that products take."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from agent_rl.learning import logprobs
from agent_rl.learning.linear import CACHES, OneDnnLinear, use_one_dnn
from agent_rl.learning.logprobs import chunked_logprobs


def plain(hidden: Any, weight: Any, bias: Any, targets: Any, temperature: float) -> tuple[Any, Any]:
    logits = torch.nn.functional.linear(hidden, weight, bias) / temperature
    log_p = torch.log_softmax(logits, dim=-1)
    return log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize(
    ("tokens_at_once", "least", "temperature"), [(1, 64, 1.0), (7, 64, 0.7), (20, 3, 0.7), (99, 64, 1.0)]
)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("uses", [[0], [1], [0, 1]], ids=["logprobs", "entropy", "both"])
@pytest.mark.parametrize("tokens", [None, 40, 30])
def test_pieces_and_tokens_that_are_never_sampled_change_neither_values_nor_gradients(
    monkeypatch, tokens_at_once, least, temperature, *, with_bias, uses, tokens
):
    """A second backward pass too gives the same, though the first has used what the forward pass kept."""
    monkeypatch.setattr(logprobs, "LEAST", least)
    monkeypatch.setattr(logprobs, "CACHED", 100)
    drawn = torch.Generator().manual_seed(1)
    hidden, weight, bias = (torch.randn(shape, generator=drawn) for shape in ((20, 8), (50, 8), (50,)))
    targets = torch.randint(0, tokens or 50, (20,), generator=drawn)
    given = [torch.randn(20, generator=drawn) for _ in range(2)]

    def run(function: Any, rows: int, **options: Any) -> tuple[list[Any], list[Any]]:
        leaves = [each.clone().requires_grad_() for each in (hidden, weight[:rows], bias[:rows])[: 2 + with_bias]]
        made = function(*leaves, *[None] * (not with_bias), targets, temperature=temperature, **options)
        total = sum((made[part] * given[part]).sum() for part in uses)
        total.backward(retain_graph=True)
        total.backward()
        return [each.detach() for each in made], [leaf.grad for leaf in leaves]

    values, gradients = run(plain, tokens or 50)
    ours, of_ours = run(chunked_logprobs, 50, tokens_at_once=tokens_at_once, tokens=tokens)
    for one, other in zip(ours, values, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    for one, other in zip(of_ours, gradients, strict=True):
        assert torch.allclose(one[: len(other)], other, atol=1e-5)
        assert not one[len(other) :].any()


def test_entropies_that_nobody_wants_are_not_made():
    hidden, weight, targets = torch.randn(5, 3), torch.randn(7, 3), torch.tensor([0, 1, 2, 3, 6])
    made = [
        chunked_logprobs(hidden, weight, None, targets, temperature=1.0, tokens_at_once=2, with_entropy=wanted)
        for wanted in (True, False)
    ]
    assert torch.equal(made[0][0], made[1][0])
    assert made[0][1].min() > 0
    assert not made[1][1].any()


PEAK = """
import resource, sys, torch
from agent_rl.learning.logprobs import chunked_logprobs
torch.set_num_threads(1)
n, v, pieces = 8192, 32768, sys.argv[1]
hidden = torch.randn(n, 16).requires_grad_()
weight = torch.randn(v, 16).requires_grad_()
targets = torch.randint(0, v, (n,))
def run(count):
    made, _ = chunked_logprobs(hidden[:count], weight, None, targets[:count], temperature=1.0, tokens_at_once=int(pieces))
    made.sum().backward()
run(16)  # what torch allocates once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(n)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def printed(script: str, *words: str, **environment: str) -> list[float]:
    """What a process of its own prints: what it holds says nothing of other tests, and libraries read limits once."""
    own = {name: value for name, value in os.environ.items() if name not in CACHES} | environment
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=own)
    return [float(line) for line in done.stdout.split()]


def test_the_peak_is_a_few_pieces_not_the_whole_logits():
    """The whole logits would be 1,024 MiB, and their gradient as much again; a piece of 256 tokens is 32 MiB."""
    [peak] = printed(PEAK, "256")
    assert peak < 5 * 32


def test_one_dnn_layers_are_the_linear_layers_they_replace():
    torch.manual_seed(0)
    plain, other = torch.nn.Linear(12, 7), torch.nn.Linear(12, 7)
    other.load_state_dict(plain.state_dict())
    whole = torch.nn.Sequential(other)
    use_one_dnn(whole)
    assert isinstance(whole[0], OneDnnLinear)
    inputs = torch.randn(2, 5, 12)
    grads = []
    for layer in (plain, other):
        given = inputs.clone().requires_grad_()
        output = layer(given)
        (output * torch.arange(7.0)).sum().backward()
        grads.append([output.detach(), given.grad, layer.weight.grad, layer.bias.grad])
    assert all(torch.allclose(one, two, atol=1e-5) for one, two in zip(*grads, strict=True))


GROWTH = """
import torch
from pathlib import Path
from torch import nn
from agent_rl.learning.linear import use_one_dnn

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

torch.set_num_threads(1)
layer = nn.Sequential(nn.Linear(128, 128))
use_one_dnn(layer)
for rows in range(1, 20):
    layer(torch.randn(rows, 128)).sum().backward()
before = held()
for rows in range(20, 220):
    layer(torch.randn(rows, 128)).sum().backward()
print(held() - before)
"""


def test_products_of_ever_new_lengths_take_no_more_memory():
    """MiB that 200 forward and backward passes over as many lengths leave behind."""
    [growth] = printed(GROWTH)
    assert growth < 25


@pytest.mark.slow
def test_without_the_bound_they_do():
    """As many are kept as the libraries keep of their own accord: the test above can fail."""
    [growth] = printed(GROWTH, **dict.fromkeys(CACHES, "1024"))
    assert growth > 60


THREADS = """
import threading
from pathlib import Path
from agent_rl.learning.heap import give_heap_back, share_one_heap

def resident():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) >> 10

def compute():
    blocks = [b"x" * ((1 + number % 7) << 20) for number in range(20)]
    del blocks
    print(resident())
    waiting.wait()

{prepare}
waiting = threading.Barrier(4)
threads = [threading.Thread(target=compute) for _ in range(3)]
for thread in threads:
    thread.start()
    while waiting.n_waiting < threads.index(thread) + 1:
        pass
waiting.wait()
for thread in threads:
    thread.join()
give_heap_back()
print(resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and glibc's malloc")
def test_threads_in_turn_keep_the_memory_of_one():
    """MiB that a process holds after each of three threads has freed 75 MiB, and when it has given memory back."""
    first, _, third, back = printed(THREADS.replace("{prepare}", "share_one_heap()"))
    assert 75 <= first <= third <= first + 8
    assert back <= third - 60
    first, _, third, _ = printed(
        THREADS.replace("{prepare}", "")
    )  # blocks are below glibc's mappings once one was freed
    assert third >= first + 60
