# SPDX-License-Identifier: Apache-2.0
"""What torch and Python wrap around a call of any op: checkpoints, hooks on what is saved, streams,
copies and pickles."""

import copy
import functools
import io
import pickle

import devices
import pytest
from calls import CALLS, each_op, each_op_with_gradients
from reference import same_bits
from tensors import torch
from torch.utils.checkpoint import checkpoint

import rlk

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("device", "generic"),
    pytest.mark.filterwarnings("ignore"),
]


def gradients(call, run):
    """Of what run(value, tensors) gives, to the sum of its squares."""
    tensors = call.tensors(needs=True)
    run(call.value, tensors).square().sum().backward()
    return {name: tensors[name].grad for name in call.names}


def plain(value, tensors):
    return value(**tensors)


def expect_same_gradients(call, run):
    want, got = gradients(call, plain), gradients(call, run)
    for name in call.names:
        assert want[name].any()
        assert same_bits(got[name], want[name]), name


@each_op_with_gradients
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint(call, use_reentrant):
    def run(value, tensors):
        names, given = zip(*tensors.items(), strict=True)
        return checkpoint(
            lambda *given: value(**dict(zip(names, given, strict=True))),
            *given,
            use_reentrant=use_reentrant,
        )

    expect_same_gradients(call, run)


@each_op_with_gradients
def test_hooks_on_saved_tensors(call):
    packed = []

    def pack(saved):
        packed.append(saved)
        return saved.cpu().numpy().copy()  # nothing of the tensor itself stays

    def unpack(array):
        return torch.from_numpy(array).to(devices.torch_name())

    def run(value, tensors):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return value(**tensors)

    expect_same_gradients(call, run)
    assert packed


@each_op_with_gradients
def test_saved_tensors_in_host_memory(call):
    def run(value, tensors):
        with torch.autograd.graph.save_on_cpu(pin_memory=devices.torch_name() == "cuda"):
            return value(**tensors)

    expect_same_gradients(call, run)


@each_op_with_gradients
@devices.on_cuda_alone
def test_a_side_stream(call):
    def run(value, tensors):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # What comes late is seen, by the forward and by the backward.
            torch.cuda._sleep(20_000_000)
            late = {n: t * 1 if t.is_floating_point() else t.clone() for n, t in tensors.items()}
            found = value(**late) * 1
        torch.cuda.current_stream().wait_stream(stream)
        return found

    expect_same_gradients(call, run)
    torch.cuda.synchronize()


class Layer(torch.nn.Module):
    """Whose parameters are the tensors of a call that have gradients."""

    def __init__(self, op):
        super().__init__()
        call = CALLS[op]
        tensors = call.tensors()
        for name in call.names:
            self.register_parameter(name, torch.nn.Parameter(tensors.pop(name)))
        self.others = tensors
        self.function = functools.partial(getattr(rlk.jit, op), **call.options)

    def forward(self):
        found = self.function(**dict(self.named_parameters()), **self.others)
        return found if isinstance(found, torch.Tensor) else found[0]


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@each_op_with_gradients
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), saved_and_loaded],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_a_copied_module(call, copied):
    layer = Layer(call.op)
    layer().square().sum().backward()  # what a call leaves behind must be no hindrance
    other = copied(layer)
    assert same_bits(other().detach(), layer().detach())
    layer.zero_grad()
    other.zero_grad()
    other().square().sum().backward()
    assert all(parameter.grad is None for parameter in layer.parameters())
    layer().square().sum().backward()
    for one, another in zip(layer.parameters(), other.parameters(), strict=True):
        assert same_bits(one.grad, another.grad)


def flat(found):
    parts = [found] if isinstance(found, torch.Tensor) else list(found or ())
    return [t for p in parts for t in ([p] if isinstance(p, torch.Tensor) else flat(p))]


@each_op
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda found: pickle.loads(pickle.dumps(found))])
def test_copied_results(call, copied):
    with torch.no_grad():
        found = call(**call.tensors())
    other = copied(found)
    assert type(other) is type(found)
    tensors = flat(found)
    assert tensors
    for one, another in zip(tensors, flat(other), strict=True):
        assert same_bits(one, another)
        assert one.data_ptr() != another.data_ptr()


@each_op
def test_a_pickled_error(call):
    tensors = call.tensors()
    name = next(iter(tensors))
    tensors[name] = tensors[name].to(torch.complex64)
    with pytest.raises(rlk.InvalidArgument) as caught:
        call(**tensors)
    error = caught.value
    other = pickle.loads(pickle.dumps(error))
    assert (type(other), str(other), other.fault) == (type(error), str(error), error.fault)
    assert (other.fault.op, other.fault.argument) == (call.op, name)
    assert str(copy.deepcopy(error)) == str(error)


def test_a_function_and_an_explanation_are_pickled():
    for call in CALLS.values():
        function = getattr(rlk.jit, call.op)
        assert pickle.loads(pickle.dumps(function)) is function
    found = rlk.jit.explain(
        rlk.jit.logp,
        *(
            torch.zeros(n, device=devices.torch_name(), dtype=dtype)
            for n, dtype in (((2, 50), None), (2, torch.int64))
        ),
    )
    assert pickle.loads(pickle.dumps(found)) == found
