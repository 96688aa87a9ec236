# SPDX-License-Identifier: Apache-2.0
"""Chunks of rows on a card: specialized kernels, a graph, sizes of a model."""

import pytest
from chunks import Chunks, at_once, by_chunks, call_of, upstream_of
from devices import on_cuda_alone
from tensors import torch

import rlk

pytestmark = [pytest.mark.torch, on_cuda_alone, pytest.mark.usefixtures("device")]

PATTERNS = ("none", "half", "all but 3", "5 of each chunk", "one of each chunk", "all")


@pytest.fixture(autouse=True)
def need_sm90():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("sm_90a alone has chunks")


@pytest.mark.parametrize("specialize", [True, False])
@pytest.mark.parametrize("size", [512, 1024])
def test_sizes_of_a_model(size, specialize):
    rlk.jit.configure(specialize=specialize)
    call = call_of(sizes=(3000, 520, 50257))
    for pattern in PATTERNS:
        call["grad_output"] = upstream_of(pattern, size, 3000)
        by_chunks(call, size).expect(at_once(call))


# Which rows have a gradient is known on the device alone.
def test_a_graph_of_chunks():
    call = call_of(sizes=(1000, 200, 3331))
    chunks = Chunks(call, 256)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        chunks.run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        chunks.run()
    for pattern in PATTERNS:
        call["grad_output"].copy_(upstream_of(pattern, 256))
        for gradient in (chunks.made.hidden, chunks.made.weight, chunks.made.bias):
            gradient.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        chunks.made.expect(at_once(call))


def test_chunks_of_a_stream_of_many_rows():
    call = call_of(sizes=(20000, 128, 8192), bias=None)
    call["grad_output"][::3] = 0
    wanted = at_once(call, sums=True)
    by_chunks(call, 2048, sums=True, weight_is_sums=True).expect(wanted)
