# SPDX-License-Identifier: Apache-2.0
"""rlk.jit.warm and rlk.jit.preload: a model's kernels, compiled and loaded ahead of its calls."""

import json
import os
import re
import subprocess

import numpy as np
import pytest
from devices import host_levels
from processes import entries, run_python

import rlk
from rlk._program import command

LEVEL = host_levels()[-1]
OTHER = host_levels()[0]


def kernel(passes, *, vocab=1000, dim=64, dtype="f32", level=LEVEL):
    return f"linear_logp.{passes}[x={dtype} V={vocab} D={dim}]@{level}"


def both(**sizes):
    return [kernel("fwd", **sizes), kernel("bwd", **sizes)]


def of_logits(*, vocab=1000, dtype="f32", level=LEVEL):
    return [f"logp.{passes}[x={dtype} V={vocab}]@{level}" for passes in ("fwd", "bwd")]


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 1000, "hidden_size": 64}))
    return folder


def test_warm_compiles_once_and_lists_it_in_the_manifest(cache, config):
    options = {"dtype": "fp32", "arch": LEVEL, "cache_dir": cache}
    first = rlk.jit.warm(config, **options)
    kernels = [*both(), *of_logits()]
    assert sorted(first.compiled) == sorted(kernels)
    assert (first.present, first.failed) == ([], {})
    files = entries(cache)
    assert len(files) == 4
    second = rlk.jit.warm(config / "config.json", **options)
    assert (second.compiled, second.present, second.failed) == ([], kernels, {})
    assert entries(cache) == files
    manifest = json.loads((cache / "manifest.json").read_text())
    assert manifest == {"format": 1, "kernels": sorted(kernels)}


def test_what_is_assumed_of_a_model_is_said(cache, tmp_path, capfd):
    model = {"d_model": 24, "vocab_size": 41, "pad_vocab_size_multiple": 8, "eps": [0.0, np.inf]}
    (tmp_path / "config.json").write_text(json.dumps(model))
    options = {"op": "linear_logp", "dtype": "fp32", "arch": LEVEL, "passes": "fwd"}
    warmed = rlk.jit.warm(tmp_path, **options, cache_dir=cache)
    assert warmed.compiled == [f"linear_logp.fwd[x=f32 V=48 D=24]@{LEVEL}"]
    line = f"{tmp_path}/config.json: assumed V=48, with rows beyond vocab_size=41"
    assert line in capfd.readouterr().err
    rlk.jit.preload(tmp_path, device="cpu")
    assert line in capfd.readouterr().err


def test_what_is_asked_for_is_compiled_and_no_more(cache):
    warmed = rlk.jit.warm(
        ["V=1000,D=64", "V=50,D=8"],
        dtype=["fp32", "bf16"],
        arch=[LEVEL, OTHER] if OTHER != LEVEL else LEVEL,
        passes="fwd",
        op="linear_logp",
        jobs=1,
        cache_dir=cache,
    )
    assert sorted(warmed.compiled) == sorted(
        kernel("fwd", vocab=vocab, dim=dim, dtype=dtype, level=level)
        for vocab, dim in [(1000, 64), (50, 8)]
        for dtype in ("f32", "bf16")
        for level in {LEVEL, OTHER}
    )
    shards = rlk.jit.warm(
        "V=1000,D=64", tp=8, vocab=1024, dtype="fp32", arch=LEVEL, cache_dir=cache
    )
    names = [*both(vocab="128", dim="64 segment=128"), *of_logits(vocab="128 segment=128")]
    assert sorted(shards.compiled) == sorted(names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": "no/such"}, "model: no/such: expected a config.json"),
        ({"models": []}, "model: expected a config.json, a folder, V=..,D=.. or --trace, got none"),
        ({"models": "V=3,D=5", "arch": "sm_90"}, '--arch: expected sm_80, .*, got "sm_90"'),
        ({"models": "V=3,D=5", "dtype": "int8"}, '--dtype: expected bf16, .*, got "int8"'),
        ({"models": "V=3,D=5", "passes": "both"}, '--pass: expected fwd, bwd, got "both"'),
        ({"models": "V=3,D=5", "op": "gemm"}, '--op: expected .*linear_logp.*, got "gemm"'),
        (
            {"models": "V=3,D=5", "op": ["linear_logp", "ppo_loss"]},
            "--op: expected an op whose kernels follow from a model, got ppo_loss, whose kernels "
            "follow from a call's options",
        ),
        ({"models": "V=3,D=5", "op": "group_advantages"}, "got group_advantages, whose kernels"),
        (
            {"models": "V=3,D=5", "op": "grpo_loss", "arch": "x86-64-v3"},
            "--op: expected an op with kernels for x86-64-v3 .*, got grpo_loss, which has them for",
        ),
        (
            {"models": "V=3,D=5", "op": "grpo_loss", "arch": "sm_90a", "passes": "fwd"},
            "--op: expected an op with kernels for sm_90a and this --pass, got grpo_loss",
        ),
        (
            {"models": "V=3,D=5", "op": "det_gemm"},
            "--op: expected with det_gemm a model with linear layers, a config.json or "
            "K=4096,N=12288, got V=3,D=5",
        ),
        (
            {"models": "K=3,N=5", "op": "logp"},
            "--op: expected with logp a model with a head, a config.json or V=128256,D=4096, got "
            "K=3,N=5",
        ),
        (
            {"models": ["V=3,D=5", "K=3,N=5"], "op": "logp"},
            "model: K=3,N=5: expected one that kernels of logp follow from",
        ),
        (
            {"models": "K=3,N=5", "op": "det_gemm", "stats": True},
            "--stats: expected a forward whose kernels differ with the statistics .*, got K=3,N=5 "
            "--op det_gemm",
        ),
        ({"models": "V=3,D=5", "passes": "bwd", "stats": True}, "--stats: expected a forward"),
        (
            {"models": "V=3,D=5", "op": "grpo_loss", "arch": "sm_90a", "entropy": True},
            "--entropy: expected an op whose kernels differ with the entropy",
        ),
        ({"models": "K=3,N=5", "tp": 2}, "--tp: expected kernels of a head, got K=3,N=5"),
        ({"models": "K=3,N=5", "vocab": 7}, "--vocab: expected kernels of a head"),
        ({"trace": os.devnull, "stats": True}, "--stats: expected a model that it says more of"),
        ({"trace": os.devnull, "op": "logp"}, "--op: expected a model that it says more of"),
        ({"models": "V=3,D=5", "tp": 2}, "expected a vocabulary that 2 shards divide, got 3"),
        ({"models": "V=3,D=5", "tp": 0}, "--tp"),
        ({"trace": "no/such"}, "trace: no/such: expected a file that RLK_TRACE has recorded"),
        ({"trace": os.devnull}, "expected a regular file, got something else"),
        ({"trace": __file__}, "trace: expected the name of a kernel, found none"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(change, message, cache):
    with pytest.raises(rlk.InvalidArgument, match=message) as caught:
        rlk.jit.warm(**change, cache_dir=cache)
    assert "\n" not in str(caught.value)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("option", "op"),
    [("softcap=1e38", "linear_logp"), ("softcap=0", "linear_logp"), ("logit_scale=1e39", "logp")],
)
def test_what_calls_refuse_is_refused_in_their_words(option, op, cache):
    name, value = option.split("=")
    hidden, weight, target = np.ones((2, 5), "f4"), np.ones((3, 5), "f4"), [0, 1]
    operands = (hidden, weight) if op == "linear_logp" else (hidden,)
    with pytest.raises(rlk.InvalidArgument) as called:
        getattr(rlk.jit, op)(*operands, np.array(target), **{name: float(value)})
    with pytest.raises(rlk.InvalidArgument) as warmed:
        rlk.jit.warm(f"V=3,D=5,{option}", op=op, cache_dir=cache)
    told = str(called.value).removeprefix(f"{op}: ")
    assert str(warmed.value) == f"warm: model: V=3,D=5,{option}: {told}"
    assert not cache.exists()
    with pytest.raises(rlk.InvalidArgument, match=f"{name}: expected a finite number"):
        rlk.jit.preload(f"V=3,D=5,{option}", device="cpu")


@pytest.mark.parametrize("wrong", [1, None, "yes"])
def test_switches(wrong, cache):
    with pytest.raises(rlk.InvalidArgument, match=r"^preload: strict: expected True or False, got"):
        rlk.jit.preload(strict=wrong)
    for name in ("entropy", "stats"):
        with pytest.raises(
            rlk.InvalidArgument, match=f"^warm: {name}: expected True or False, got"
        ):
            rlk.jit.warm("V=3,D=5", cache_dir=cache, **{name: wrong})


def test_logp_is_warmed_for_what_a_model_does_to_its_logits(cache):
    rlk.jit.warm(
        "V=40,D=24,softcap=30,logit_scale=0.5",
        dtype="fp32",
        arch=LEVEL,
        op="logp",
        entropy=True,
        stats=True,
        cache_dir=cache,
    )
    rlk.jit.configure(cache_dir=cache, policy="off", arch=LEVEL)
    logits, target = np.ones((3, 40), "f4"), np.arange(3)
    options = {"softcap": 30.0, "logit_scale": 0.5}
    entropy, stats = {"return_entropy": True}, {"return_stats": True}
    for more in ({}, entropy, stats, {**entropy, **stats}):
        for backward in (False, True):
            found = rlk.jit.explain(
                rlk.jit.logp, logits, target, **options, **more, backward=backward
            )
            assert (found.variant, found.source) == ("specialized", "cache")
    assert rlk.jit.explain(rlk.jit.logp, logits, target).variant == "generic"


def test_calls_after_a_preload_compile_and_load_nothing(cache, config):
    rlk.jit.warm(config, dtype="fp32", arch=LEVEL, cache_dir=cache)
    ended = run_python(
        """
        import rlk
        found = rlk.jit.preload(device="cpu", strict=True)
        before = rlk.jit.cache_info()
        logp = call(1000, 64)
        after = rlk.jit.cache_info()
        report(loaded=found.loaded, missing=found.missing, llvm=maps_llvm(),
               before=before._asdict(), hits=after.memory_hits)
        """,
        RLK_JIT="off",
        RLK_CACHE_DIR=str(cache),
    )
    report = ended.report
    assert sorted(report["loaded"]) == sorted([*both(), *of_logits()])
    assert report["missing"] == []
    assert report["before"]["loaded"] == 4
    assert (report["hits"], report["disk_hits"], report["compiles"], report["fallbacks"]) == (
        1,
        4,
        0,
        0,
    )
    assert not report["llvm"]
    assert not ended.warnings


def test_names_traces_and_models_say_what_to_load(cache, config, tmp_path):
    rlk.jit.warm(config, dtype=["fp32", "bf16"], arch=LEVEL, cache_dir=cache)
    trace = tmp_path / "trace"
    trace.write_text(f"{kernel('fwd')}\n{kernel('fwd', vocab=7)}\n{kernel('fwd', level=OTHER)}\n")
    ended = run_python(
        f"""
        import rlk
        for names in ({kernel("bwd")!r}, {str(trace)!r}, {str(config)!r}, "V=1000,D=64",
                      ["V=1000,D=65", {kernel("bwd")!r}]):
            print(json.dumps(rlk.jit.preload(names, device="cpu")))
        """,
        RLK_CACHE_DIR=str(cache),
    )
    by_name, by_trace, by_config, by_sizes, mixed = ended.reports
    assert by_name == [[kernel("bwd")], []]
    if OTHER != LEVEL:
        assert by_trace == [[kernel("fwd")], [kernel("fwd", vocab=7)]]
    everything = sorted([*both(), *both(dtype="bf16"), *of_logits(), *of_logits(dtype="bf16")])
    assert sorted(by_config[0]) == sorted(by_sizes[0]) == everything
    assert by_config[1] == by_sizes[1] == []
    assert sorted(mixed[0]) == sorted([*of_logits(), *of_logits(dtype="bf16"), kernel("bwd")])
    assert mixed[1] == both(dim=65, dtype="bf16")


def test_a_strict_preload_names_what_is_missing(cache):
    with pytest.raises(rlk.LoadError, match=re.escape(kernel("bwd", vocab=61))):
        rlk.jit.preload(both(vocab=61), device="cpu", strict=True)
    # Nothing to load is no success: most likely a folder that is not mounted.
    ended = run_python(
        """
        import rlk
        try:
            rlk.jit.preload(device="cpu", strict=True)
        except rlk.LoadError as error:
            print(json.dumps(str(error)))
        print(json.dumps(rlk.jit.preload(device="cpu")))
        """,
        RLK_CACHE_DIR=str(cache),
    )
    said, lenient = ended.reports
    assert LEVEL in said
    assert str(cache) in said
    assert lenient == [[], []]


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:1", 1.5, True, "meta"])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(rlk.InvalidArgument, match="preload: device: expected"):
        rlk.jit.preload(device=device)


@pytest.mark.parametrize("names", [5, [5], ["V=3,D=5", None]])
def test_names_that_are_no_words_are_refused(names):
    with pytest.raises(rlk.InvalidArgument, match="preload: names: expected a string, a path"):
        rlk.jit.preload(names, device="cpu")
    with pytest.raises(rlk.InvalidArgument, match="warm: models: expected a string, a path"):
        rlk.jit.warm(names)


def test_names_that_are_none_are_refused():
    with pytest.raises(rlk.InvalidArgument, match="preload: names: expected a kernel's name"):
        rlk.jit.preload("nonsense", device="cpu")
    with pytest.raises(rlk.InvalidArgument, match="File name too long"):
        rlk.jit.preload("/" + "x" * 300, device="cpu")  # cannot be looked at, even by root
    with pytest.raises(rlk.InvalidArgument, match="kernel name"):
        rlk.jit.preload("linear_logp.fwd[x=f32 V=ten]@x86-64-v3", device="cpu")


def test_a_trace_of_production_warms_another_cache(cache, tmp_path):
    trace = tmp_path / "trace"
    run_python(
        "call(50, 8); call(51, 8); call(50, 8)",
        RLK_TRACE=str(trace),
        RLK_CACHE_DIR=str(tmp_path / "production"),
    )
    names = [kernel("fwd", vocab=vocab, dim=8) for vocab in (50, 51)]
    assert trace.read_text().splitlines() == names
    warmed = rlk.jit.warm(trace=trace, cache_dir=cache)
    assert sorted(warmed.compiled) == names
    ended = run_python("call(50, 8); report()", RLK_CACHE_DIR=str(cache), RLK_JIT="off")
    assert (ended.report["disk_hits"], ended.report["fallbacks"]) == (1, 0)


def test_64_processes_start_at_once_on_a_read_only_layer(cache, tmp_path):
    rlk.jit.warm("V=50,D=8", dtype="fp32", arch=LEVEL, cache_dir=cache)
    before = {name: (cache / name).stat() for name in os.listdir(cache)}
    cache.chmod(0o555)
    try:
        ended = run_python(
            """
            children = []
            for _ in range(64):
                child = os.fork()
                if child == 0:
                    import rlk
                    rlk.jit.preload(device="cpu", strict=True)
                    logp = call(50, 8)
                    line = json.dumps({**rlk.jit.cache_info()._asdict(), "logp": logp})
                    os.write(1, line.encode() + b"\\n")  # in one: lines must not mix
                    os._exit(0)
                children.append(child)
            assert all(os.waitpid(child, 0)[1] == 0 for child in children)
            """,
            unprivileged=True,
            RLK_JIT="off",
            RLK_CACHE_DIR=str(tmp_path / "none" / "such"),
            RLK_CACHE_PATH=str(cache),
        )
    finally:
        cache.chmod(0o755)
    assert len(ended.reports) == 64
    assert len({tuple(report["logp"]) for report in ended.reports}) == 1
    assert all(report["fallbacks"] == report["compiles"] == 0 for report in ended.reports)
    assert not ended.warnings
    after = {name: (cache / name).stat() for name in os.listdir(cache)}
    assert {n: (s.st_mtime_ns, s.st_size) for n, s in before.items()} == {
        n: (s.st_mtime_ns, s.st_size) for n, s in after.items()
    }
    assert not (tmp_path / "none").exists()


def test_warm_and_preload_mean_the_same_target(cache):
    if OTHER == LEVEL:
        pytest.skip("this processor has one level")
    rlk.jit.configure(arch=OTHER)
    warmed = rlk.jit.warm("V=1000,D=64", dtype="fp32", cache_dir=cache)
    assert sorted(warmed.compiled) == sorted([*both(level=OTHER), *of_logits(level=OTHER)])


def test_what_is_removed_on_purpose_is_not_missed(cache):
    rlk.jit.warm(["V=1000,D=64", "V=50,D=8"], dtype="fp32", arch=LEVEL, cache_dir=cache)
    options = ["--cache-dir", str(cache)]
    subprocess.run(command([*options, "remove", *both()]), check=True, capture_output=True)
    manifest = json.loads((cache / "manifest.json").read_text())
    assert manifest["kernels"] == sorted(
        [*both(vocab=50, dim=8), *of_logits(), *of_logits(vocab=50)]
    )
    subprocess.run(command([*options, "clear", "--yes"]), check=True, capture_output=True)
    assert json.loads((cache / "manifest.json").read_text())["kernels"] == []
