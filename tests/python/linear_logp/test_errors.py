# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments: `linear_logp: argument: expected ..., got ...`, before anything is computed."""

import re
from functools import partial

import numpy as np
import pytest
from devices import jit
from problems import numpy_type, problem
from reference import same_bits

import rlk

pytestmark = pytest.mark.usefixtures("generic")
on_each_device = pytest.mark.usefixtures("device")

ROWS, DIM, VOCAB = 4, 8, 50


def arguments(**changed):
    p = problem(ROWS, DIM, VOCAB, bias="float32")
    return {"hidden": p.hidden, "weight": p.weight, "target": p.target, "bias": p.bias, **changed}


def refused(message: str, *, explained: bool = False, **changed) -> None:
    """Forward and backward refuse the call with this message, if asked explain too."""
    given = arguments(**changed)
    lead = np.shape(given["hidden"])[:-1] if hasattr(given["hidden"], "shape") else (ROWS,)
    upstream = np.ones(lead, np.float32)
    calls = [
        lambda: jit.linear_logp(**given),
        lambda: jit.linear_logp_backward(upstream, **given),
        lambda: jit.explain(rlk.jit.linear_logp, **given),
        lambda: jit.explain(rlk.jit.linear_logp, **given, backward=True),
    ]
    for call in calls if explained else calls[:2]:
        with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: {message}$"):
            call()


refused_by_all = partial(refused, explained=True)


def zeros(*shape, kind="float32"):
    return np.zeros(shape, kind)


THREE = "float32, bfloat16 or float16"
GATHERED = r"\[V, 8\] .*; a weight that is sharded must be gathered: .*FSDP.*ZeRO-3.*"


def list_of(shape):
    return re.escape(str(list(shape)))


WRONG = [
    *(
        ({"hidden": zeros(ROWS, DIM, kind=k), "weight": zeros(VOCAB, DIM, kind=k)},
         f"hidden: expected dtype {THREE}, got {k}")
        for k in ("float64", "complex64", "int32", "bool")
    ),
    *(
        ({name: zeros(*shape, kind="float16")},
         rf"weight: expected dtype {hidden} \(that of hidden; of torch tensors .*\), got {weight}")
        for name, shape, hidden, weight in (
            ("weight", (VOCAB, DIM), "float32", "float16"),
            ("hidden", (ROWS, DIM), "float16", "float32"),
        )
    ),
    ({"bias": zeros(VOCAB, kind="float16")},
     "bias: expected dtype float32, got float16"),
    *(
        ({"target": zeros(ROWS, kind=kind)}, f"target: expected an integer dtype, got {kind}")
        for kind in ("float32", "bool", "complex128")
    ),
    *(
        ({"weight": zeros(*shape), "bias": None},
         rf"weight: expected shape \[V, 8\] with V and D at least 1, got {list_of(shape)}")
        for shape in ((VOCAB, DIM + 1), (DIM, VOCAB), (1, VOCAB, DIM), ())
    ),
    # What a sharded parameter looks like outside of its gather.
    *(
        ({"weight": zeros(*shape), "bias": None}, f"weight: expected shape {GATHERED}")
        for shape in ((VOCAB * DIM,), (0,), (0, DIM), (VOCAB, 0))
    ),
    ({"hidden": zeros(ROWS, 0), "weight": zeros(VOCAB, 0)},
     r"weight: expected shape \[V, 0\] with V and D at least 1, got .*"),
    ({"hidden": np.array(1, np.float32)}, r"hidden: expected shape \[..., D\], got \[\]"),
    *(
        ({"bias": zeros(*shape)}, rf"bias: expected shape \[50\], got {list_of(shape)}")
        for shape in ((VOCAB - 1,), (VOCAB, 1), (1,), ())
    ),
    ({"mask": zeros(ROWS, kind="complex64")},
     "mask: expected a bool, integer or floating dtype, got complex64"),
    ({"temperature": np.ones(ROWS, np.int64)},
     "temperature: expected a number or a floating dtype, got int64"),
]  # fmt: skip


@on_each_device
@pytest.mark.parametrize(("changed", "message"), WRONG, ids=lambda x: x if "got" in x else "")
def test_dtypes_and_shapes(changed, message):
    refused(message, **changed)


@pytest.mark.parametrize("name", ["hidden", "target", "mask"])
@pytest.mark.parametrize("kind", [">f4", ">i8", ">u2", "O", "U3", "longdouble", "datetime64[s]"])
def test_dtypes_that_no_op_reads(name, kind):
    shape = (ROWS, DIM) if name == "hidden" else (ROWS,)
    got = re.escape(str(np.dtype(kind)))
    expected = rf"{THREE} \(target and mask: integers or bool\), in the machine's byte order"
    refused(f"{name}: expected {expected}, got {got}", **{name: zeros(*shape).astype(kind)})


@pytest.mark.parametrize("name", ["hidden", "weight", "target", "bias", "mask", "temperature"])
def test_an_array_with_a_mask_of_its_own(name):
    given = {"mask": np.ones(ROWS), "temperature": np.ones(ROWS), **arguments()}
    hides = np.ma.masked_array(given[name], mask=np.arange(given[name].size) == 0)
    refused(
        f"{name}: expected an array without a mask of its own, got MaskedArray", **{name: hides}
    )


def test_bias_of_another_short_type():
    sizes = {"hidden": (ROWS, DIM), "weight": (VOCAB, DIM)}
    half = {name: zeros(*size, kind="float16") for name, size in sizes.items()}
    bias = zeros(VOCAB).astype(numpy_type("bfloat16"))
    refused("bias: expected dtype float16 or float32, got bfloat16", **half, bias=bias)


@on_each_device
@pytest.mark.parametrize("shape", [(ROWS - 1,), (ROWS + 1,), (ROWS, 1), (1, ROWS), (), (0,)])
def test_arguments_of_one_value_a_row(shape):
    message = rf"expected shape \[4\], got {list_of(shape)}"
    refused(f"target: {message}", target=zeros(*shape, kind="int64"))
    refused(f"mask: {message}", mask=zeros(*shape, kind="bool"))
    if shape:  # without axes it is a number
        refused(f"temperature: {message}", temperature=np.ones(shape))
    with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: grad_output: {message}$"):
        jit.linear_logp_backward(zeros(*shape), **arguments())


@pytest.mark.parametrize(
    "bad", [-1, VOCAB, 2**31, 2**31 - 1, 2**32 + 1, 2**32, -(2**63), 2**63 - 1]
)
def test_targets_out_of_range(bad):
    # 2^32 + 1 narrowed to 32 bits would be a valid id.
    target = np.array([1, 2, bad, 3])
    refused(rf"target: expected ids in \[0, 50\), got {bad} in row 2", target=target)
    two_axes = arguments(target=np.array([[1, 2], [bad, 3]]))
    two_axes["hidden"] = two_axes["hidden"].reshape(2, 2, DIM)
    with pytest.raises(rlk.InvalidArgument, match=rf"target: .* got {bad} in row 2"):
        rlk.jit.linear_logp(**two_axes)


def test_the_row_of_a_bad_target_is_counted_with_inactive_rows():
    mask = np.array([False, False, True, True])
    target = np.array([-5, 2, 1, 99])
    refused(r"target: .* got 99 in row 3", target=target, mask=mask)


@on_each_device
@pytest.mark.parametrize(
    "bad", [0, -1, 0.0, -0.0, float("nan"), float("inf"), 1e39, 1e-39, np.float32("nan")]
)
def test_temperature_out_of_range(device, bad):
    message = "temperature: expected a finite number above 0 .3e-39 to 8e37., got .*"
    refused(message, temperature=bad)
    if device == "cpu":
        refused(message, temperature=np.array([1, 1, bad, 1], np.float64))


@pytest.mark.parametrize(
    ("bad", "got"),
    [(None, "NoneType"), ("1", "str"), ([1.0], "list"), (1j, "complex"), (10**400, "int")],
)
def test_what_is_no_temperature(bad, got):
    message = rf"temperature: expected a number or a tensor \[...\], got {got}"
    refused(message, temperature=bad)


@pytest.mark.parametrize(
    ("mask", "got"),
    [
        (np.array([1, 0, 2, 1]), "2 in row 2"),
        (np.array([1, 0, 1, -1], np.int8), "-1 in row 3"),
        (np.array([0.5, 0, 1, 1]), "0.5 in row 0"),
        (np.array([1, np.nan, 1, 1]), "nan in row 1"),
        (np.array([1, 0, 1, 255], np.uint8), "255 in row 3"),
    ],
)
def test_masks_hold_zeros_and_ones(mask, got):
    refused(f"mask: expected 0 or 1, got {got}", mask=mask)


@on_each_device
@pytest.mark.parametrize("bad", [1.5, "a", 2**63, -(2**63) - 1, [1]])
def test_ignore_index(bad):
    message = f"ignore_index: expected an int of 64 bits or None, got {re.escape(repr(bad))}"
    refused(message, ignore_index=bad)


@pytest.mark.parametrize("bad", [0, -1, 0.0, float("nan"), float("inf"), 1e39, 1e-39])
def test_softcap_out_of_range(bad):
    refused(
        "softcap: expected a finite number above 0 .3e-39 to 8e37., got .*",
        softcap=bad,
        explained=True,
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_logit_scale_out_of_range(bad):
    refused(
        "logit_scale: expected a finite number of float32, got .*", logit_scale=bad, explained=True
    )


@pytest.mark.parametrize(("bad", "got"), [("30", "str"), ([30.0], "list"), (1j, "complex")])
def test_what_is_no_number(bad, got):
    refused_by_all(f"softcap: expected a number or None, got {got}", softcap=bad)
    refused_by_all(f"logit_scale: expected a number, got {got}", logit_scale=bad)


def test_no_logit_scale_is_one():
    refused_by_all("logit_scale: expected a number, got NoneType", logit_scale=None)


@pytest.mark.parametrize("name", ["grad_entropy", "grad_lse"])
def test_upstream_gradients_that_do_not_fit(name):
    p = problem(ROWS, DIM, VOCAB)
    for bad, message in (
        (np.ones(3, np.float32), r"expected shape \[4\], got \[3\]"),
        (np.ones(4, np.int64), "expected a floating dtype, got int64"),
        (3, "expected a torch tensor, NumPy array or DLPack tensor, got int"),
    ):
        with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: {name}: {message}$"):
            rlk.jit.linear_logp_backward(p.upstream, *p.operands, **{name: bad})


@pytest.mark.parametrize("name", ["hidden", "weight", "target", "bias", "mask"])
@pytest.mark.parametrize(("bad", "got"), [([1], "list"), (3, "int"), ("abc", "str")])
def test_what_is_no_tensor(name, bad, got):
    message = f"{name}: expected a torch tensor, NumPy array or DLPack tensor, got {got}"
    refused(message, **{name: bad})


@pytest.mark.parametrize("name", ["hidden", "weight", "target"])
def test_none_where_a_tensor_is_needed(name):
    refused(f"{name}: expected a tensor, got None", **{name: None})


def test_grad_output():
    for bad, got in ((np.ones(ROWS, int), "int64"), (np.ones(ROWS, np.complex64), "complex64")):
        message = f"grad_output: expected a floating dtype, got {got}"
        with pytest.raises(rlk.InvalidArgument, match=message):
            rlk.jit.linear_logp_backward(bad, **arguments())
    with pytest.raises(rlk.InvalidArgument, match="grad_output: expected a tensor, got None"):
        rlk.jit.linear_logp_backward(None, **arguments())


@pytest.mark.parametrize("needs", [("hidden", "target"), ("Hidden",), "hidden", "bias"])
def test_needs(needs):
    message = f"linear_logp: needs: expected .*, got {re.escape(repr(needs))}"
    with pytest.raises(rlk.InvalidArgument, match=message):
        rlk.jit.linear_logp_backward(zeros(ROWS), **arguments(), needs=needs)


def test_a_producer_that_fails_gives_its_reason():
    class Broken:
        def __dlpack__(self, **options):
            raise BufferError("gone to another host")

        def __dlpack_device__(self):
            return (1, 0)

    refused(
        r"weight: expected a tensor that DLPack can export, got .*gone to another host\)",
        weight=Broken(),
    )


def test_a_producer_that_gives_no_capsule():
    class Broken:
        def __dlpack__(self, **options):
            return 5

        def __dlpack_device__(self):
            return (1, 0)

    refused(
        "weight: expected a DLPack capsule of version 1 or before, got another", weight=Broken()
    )


@pytest.mark.parametrize("device", ["cpu", ("cpu", 0), (None, 0), (), 1])
def test_a_producer_whose_device_is_none(device):
    class Producer:
        def __dlpack__(self, **options):
            raise BufferError("what device?")

        def __dlpack_device__(self):
            return device

    refused("weight: expected a tensor that DLPack can export, got .*", weight=Producer())


def test_classes_of_errors():
    for kind, base in {
        rlk.InvalidArgument: ValueError,
        rlk.Unsupported: NotImplementedError,
        rlk.CompileError: RuntimeError,
        rlk.DriverError: RuntimeError,
        rlk.LoadError: ImportError,
    }.items():
        assert issubclass(kind, base)
        assert issubclass(kind, rlk.Error)


def test_explain_refuses_what_a_call_refuses():
    for backward in (False, True):
        with pytest.raises(rlk.InvalidArgument, match="linear_logp: hidden: expected shape"):
            rlk.jit.explain(
                rlk.jit.linear_logp,
                np.array(1, np.float32),
                zeros(VOCAB, 1),
                np.array(1),
                backward=backward,
            )
        with pytest.raises(rlk.InvalidArgument, match="linear_logp: temperature"):
            rlk.jit.explain(rlk.jit.linear_logp, **arguments(temperature=-1), backward=backward)


def test_options_are_by_name():
    with pytest.raises(TypeError, match="positional"):
        rlk.jit.linear_logp(*arguments().values(), 0.7)


@on_each_device
def test_a_refused_call_does_no_harm():
    p = problem(ROWS, DIM, VOCAB)
    before = p.logp()
    for wrong in (p.but(target=p.target + VOCAB), p.but(target=p.target[:1])):
        for _ in range(200):
            with pytest.raises(rlk.InvalidArgument):
                wrong.logp()
    assert same_bits(p.logp(), before)


@pytest.mark.parametrize("thrown", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_producer_is_not_an_error_of_the_argument(thrown):
    class Producer:
        def __dlpack__(self, **options):
            raise thrown

        def __dlpack_device__(self):
            return 1, 0

    p = problem((3,), 8, 11)
    with pytest.raises(thrown):
        rlk.jit.linear_logp(Producer(), p.weight, p.target)


def test_an_error_without_a_text_still_names_the_argument():
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    class Producer:
        def __dlpack__(self, **options):
            raise Unspeakable

    p = problem((3,), 8, 11)
    with pytest.raises(rlk.InvalidArgument, match=r"linear_logp: hidden: .*Unspeakable"):
        rlk.jit.linear_logp(Producer(), p.weight, p.target)


@pytest.mark.parametrize("temperature", [np.float32, type("Odd", (), {"ndim": "two"})()])
def test_a_temperature_that_only_looks_like_an_array(temperature):
    p = problem((3,), 8, 11)
    with pytest.raises(rlk.InvalidArgument, match="linear_logp: temperature: expected"):
        rlk.jit.linear_logp(p.hidden, p.weight, p.target, temperature=temperature)


@pytest.mark.parametrize("name", ["temperature", "softcap", "logit_scale", "ignore_index"])
@pytest.mark.parametrize("wrong", [True, False, np.True_])
def test_a_truth_value_is_no_number(name, wrong):
    """softcap=True would cap at 1, ignore_index=False take id 0 out."""
    p = problem((3,), 8, 11)
    with pytest.raises(rlk.InvalidArgument, match=f"^linear_logp: {name}: expected .*, got"):
        rlk.jit.linear_logp(p.hidden, p.weight, p.target, **{name: wrong})
    with pytest.raises(rlk.InvalidArgument, match=f"^logp: {name}: expected .*, got"):
        rlk.jit.logp(p.hidden, p.target % 8, **{name: wrong})


def test_needs_may_be_any_iterable():
    p = problem((3,), 8, 11)
    grads = rlk.jit.linear_logp_backward(
        np.ones(3, np.float32), p.hidden, p.weight, p.target, needs=iter(["weight"])
    )
    assert grads.hidden is None
    assert grads.weight is not None


def test_broadcast_sizes_beyond_any_memory_are_refused():
    p = problem((1,), 1, 1)
    for v, d in ((2**31, 1), (1, 2**60)):
        hidden = np.broadcast_to(p.hidden, (1, d))
        with pytest.raises(
            rlk.InvalidArgument, match=r"linear_logp: weight: expected V below 2\^31 and D of"
        ):
            rlk.jit.linear_logp(hidden, np.broadcast_to(p.weight, (v, d)), p.target)


@pytest.mark.parametrize("wrong", ["yes", [1], np.zeros(2), 1, 0, None, 1.0])
@pytest.mark.parametrize("name", ["return_entropy", "return_lse", "sequence_parallel", "backward"])
def test_switches(name, wrong):
    given = {**arguments(), name: wrong}
    got = {repr(wrong), rlk.errors.text(wrong)}
    expected = (
        rf"^linear_logp: {name}: expected True or False, got ({'|'.join(map(re.escape, got))})$"
    )
    with pytest.raises(rlk.InvalidArgument, match=expected):
        rlk.jit.explain(rlk.jit.linear_logp, **given)
    if name != "backward":
        with pytest.raises(rlk.InvalidArgument, match=expected):
            rlk.jit.linear_logp(**given)


@pytest.mark.parametrize("flag", [np.True_, np.False_])
def test_switches_of_numpy(flag):
    given = arguments()
    got = rlk.jit.linear_logp(**given, return_lse=flag, sequence_parallel=np.False_)
    want = rlk.jit.linear_logp(**given, return_lse=bool(flag))
    assert type(got) is type(want)


@pytest.mark.parametrize("wrong", [None, 3, "bias", [[1]], ["bias", 1], ["logits"]])
def test_what_is_no_tuple_of_needs(wrong):
    given = arguments()
    with pytest.raises(rlk.InvalidArgument, match=r"^linear_logp: needs: expected a tuple of 'hid"):
        rlk.jit.linear_logp_backward(np.ones(ROWS, np.float32), **given, needs=wrong)
