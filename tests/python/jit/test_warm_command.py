# SPDX-License-Identifier: Apache-2.0
"""rlk-jit warm at the shell: what it prints, how it is cancelled, what it leaves."""

import json
import os
import pty
import resource
import signal
import subprocess
import sys
import time

import pytest
from devices import host_levels
from problems import problem
from processes import entries, leftovers

import rlk
from rlk._cli import command

LEVEL = host_levels()[-1]
MANY = [f"V={vocab},D=24" for vocab in range(40, 90)]


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def words(cache, *more):
    options = ["--cache-dir", str(cache), "--dtype", "fp32", "--op", "linear_logp"]
    return command(["warm", *options, *more])


def run(cache, *more):
    return subprocess.run(words(cache, *more), capture_output=True, text=True, check=False)


def test_plain_lines_where_there_is_no_terminal(cache):
    first = run(cache, "--arch", LEVEL, "V=40,D=24", "--pass", "fwd")
    assert first.returncode == 0
    assert not first.stderr
    compiled, summary = first.stdout.splitlines()
    assert compiled.startswith(f"compiled linear_logp.fwd[x=f32 V=40 D=24]@{LEVEL} in ")
    assert summary.startswith("1 compiled, 0 present, 0 failed in ")
    assert summary.endswith(f": {cache}")
    second = run(cache, "--arch", LEVEL, "V=40,D=24", "--pass", "fwd")
    (summary,) = second.stdout.splitlines()
    assert summary.startswith("0 compiled, 1 present, 0 failed in ")


def test_losses_from_hidden_states_have_the_kernels_of_their_head(cache):
    given = ("--arch", LEVEL, "V=40,D=24", "--pass", "fwd")
    first = run(cache, *given)
    assert first.returncode == 0
    for op in ("linear_ppo_loss", "linear_grpo_loss", "linear_cross_entropy"):
        options = ["--cache-dir", str(cache), "--dtype", "fp32", "--op", op]
        found = subprocess.run(
            command(["warm", *options, *given]), capture_output=True, text=True, check=False
        )
        assert found.stdout.startswith("0 compiled, 1 present, 0 failed in ")


def test_a_bar_on_a_terminal(cache):
    parent, child = pty.openpty()
    process = subprocess.Popen(
        words(cache, "--arch", LEVEL, "V=40,D=24"),
        stdout=child,
        env={**os.environ, "TERM": "vt100"},
    )
    os.close(child)
    said = b""
    while True:
        try:
            said += os.read(parent, 4096)
        except OSError:  # the other end is closed
            break
    os.close(parent)
    assert process.wait() == 0
    assert b"[" + 30 * b"." + b"] 0/2" in said
    assert b"[" + 15 * b"#" + 15 * b"." + b"] 1/2" in said
    assert b"2 compiled" in said.splitlines()[-1]


def test_a_word_that_is_no_model_ends_with_2_and_one_line(cache, tmp_path):
    (tmp_path / "config.json").write_text("[]")
    ended = run(cache, "--arch", LEVEL, str(tmp_path))
    assert ended.returncode == 2
    assert not ended.stdout
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"rlk-jit: model: {tmp_path}/config.json: expected a JSON object")
    assert not cache.exists()


def test_kernels_follow_what_the_model_does_to_its_logits(cache, tmp_path):
    gemma = {"vocab_size": 40, "hidden_size": 24, "final_logit_softcapping": 30.0}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": gemma}))
    ended = run(cache, "--arch", LEVEL, str(tmp_path), "V=40,D=24", "--pass", "fwd")
    assert ended.returncode == 0
    said, *compiled, _ = ended.stdout.splitlines()
    assert said == f"{tmp_path}: calls with softcap=30"
    kernels = {line.split("[")[1].split("]")[0] for line in compiled}
    assert kernels == {"x=f32 V=40 D=24 softcap=yes", "x=f32 V=40 D=24"}
    # They are the ones that calls ask for.
    rlk.jit.configure(cache_dir=cache, policy="off", arch=LEVEL)
    p = problem(3, 24, 40)
    for options in ({}, {"softcap": 30.0}):
        found = rlk.jit.explain(rlk.jit.linear_logp, *p.operands, **options)
        assert (found.variant, found.source) == ("specialized", "cache")
    assert rlk.jit.explain(rlk.jit.linear_logp, *p.operands, logit_scale=0.5).variant == "generic"


def test_json_tells_the_models(cache):
    word = "V=40,D=24,logit_scale=0.0625,softcap=30"
    ended = run(cache, "--arch", LEVEL, word, "--pass", "fwd", "--entropy", "--json")
    told = json.loads(ended.stdout)
    assert told["models"] == [
        {"model": word, "vocab": 40, "hidden": 24, "logit_scale": 0.0625, "softcap": 30.0}
    ]
    names = [kernel["name"].split("[")[1].split("]")[0] for kernel in told["kernels"]]
    plain = "x=f32 V=40 D=24 softcap=yes logit_scale=yes"
    assert names == [plain, f"{plain} entropy=yes"]


def test_stats_are_warmed_for_the_forward_alone(cache):
    ended = run(cache, "--arch", LEVEL, "V=40,D=24", "--entropy", "--stats", "--json")
    kernels = [kernel["name"].partition("@")[0] for kernel in json.loads(ended.stdout)["kernels"]]
    made = "", " entropy=yes", " stats=yes", " entropy=yes stats=yes"
    assert sorted(kernels) == sorted(
        [f"linear_logp.fwd[x=f32 V=40 D=24{words}]" for words in made]
        + [f"linear_logp.bwd[x=f32 V=40 D=24{words}]" for words in made[:2]]
    )


def test_an_nvrtc_for_cpu_kernels_alone_is_refused(cache):
    ended = run(cache, "--arch", LEVEL, "V=40,D=24", "--cuda", "12")
    assert ended.returncode == 2
    assert "--cuda: expected a kernel that NVRTC compiles" in ended.stderr
    assert not cache.exists()


def test_a_folder_that_cannot_be_written_is_a_failure(tmp_path):
    (tmp_path / "file").write_text("")
    ended = run(tmp_path / "file", "--arch", LEVEL, "V=40,D=24")
    assert ended.returncode == 1
    assert "could not be stored" in ended.stderr or "expected a folder" in ended.stderr


ONE = ("--arch", LEVEL, "V=40,D=24", "--pass", "fwd")


def test_kernels_of_read_only_layers_need_no_folder(cache, tmp_path):
    run(cache, *ONE)
    (tmp_path / "file").write_text("")
    no_folder = tmp_path / "file" / "cache"
    ended = run(no_folder, *ONE, "--layer", str(cache))
    assert ended.stdout.startswith("0 compiled, 1 present, 0 failed in ")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"rlk-jit: {no_folder}/manifest.json: not written: ")
    assert line.endswith("; no kernel had to be stored")
    assert ended.returncode == 0
    # One that is not there yet is made.
    made = tmp_path / "not" / "there"
    ended = run(made, *ONE, "--layer", str(cache))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (made / "manifest.json").read_text() == (cache / "manifest.json").read_text()
    # No variable names a folder that could be made.
    nowhere = {"HOME": str(no_folder), "TMPDIR": str(no_folder), "RLK_CACHE_PATH": str(cache)}
    asked = ["--dtype", "fp32", "--op", "linear_logp", *ONE, "--json"]
    ended = in_environment(nowhere, command(["warm", *asked]))
    assert ended.returncode == 0
    told = json.loads(ended.stdout)
    assert told["folder"] is None
    assert [kernel["outcome"] for kernel in told["kernels"]] == ["present"]
    (line,) = ended.stderr.splitlines()
    assert "compiled kernels are not stored" in line
    script = (
        f"import rlk; print(rlk.jit.warm('V=40,D=24', arch='{LEVEL}', dtype='fp32', "
        "op='linear_logp', passes='fwd').present)"
    )
    ended = in_environment(nowhere, [sys.executable, "-c", script])
    assert ended.stdout.strip() == str([kernel["name"] for kernel in told["kernels"]])
    nowhere.pop("RLK_CACHE_PATH")
    ended = in_environment(nowhere, command(["warm", *asked]))
    assert ended.returncode == 1
    assert ended.stderr.endswith("rlk-jit: cache: there is no folder that could be written\n")


def in_environment(variables, asked):
    left_out = ("RLK_CACHE_DIR", "XDG_CACHE_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.run(asked, capture_output=True, text=True, check=False, env=kept | variables)


def test_what_is_stored_and_cannot_be_listed_is_a_failure(cache, tmp_path):
    run(cache, *ONE)
    pack, other = tmp_path / "pack", tmp_path / "other"
    exported = command(["export", str(pack), "--cache-dir", str(cache)])
    subprocess.run(exported, check=True)
    asked = command(["import", str(pack), "--cache-dir", str(other)])
    (other / "manifest.json" / "a folder").mkdir(parents=True)
    for stored, code in (("1 stored, 0 present", 1), ("0 stored, 1 present", 0)):
        ended = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert ended.returncode == code
        assert ended.stdout.startswith(stored)
        assert f"{other}/manifest.json: not written: " in ended.stderr
    again = run(other, *ONE)
    assert again.returncode == 0
    assert "not written: " in again.stderr
    assert run(other, *ONE, "--entropy").returncode == 1


@pytest.mark.parametrize(
    "asked", [("remove", "linear_logp"), ("prune", "--older-than", "1h"), ("clear", "--yes")]
)
def test_what_is_removed_is_told_where_the_manifest_cannot_be_written(cache, asked):
    run(cache, *ONE)
    for name in entries(cache):
        os.utime(cache / name, (0, 0))  # of long ago
    ended = subprocess.run(
        command([*asked, "--cache-dir", str(cache)]),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert not entries(cache)
    assert ended.returncode == 1
    assert "removed" in ended.stdout
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"rlk-jit: {cache}/manifest.json: not written: ")


@pytest.mark.parametrize("send", [os.kill, os.killpg])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_is_done(cache, number, send):
    with subprocess.Popen(
        words(cache, "--arch", LEVEL, *MANY),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        assert first.startswith("compiled ")
        send(process.pid, number)
        rest = process.stdout.read().splitlines()
        said = process.stderr.read()
    assert process.returncode == 128 + number
    assert said == f"rlk-jit: interrupted by {number.name}; what is done is kept\n"
    assert " 0 failed, " in rest[-1]
    assert " not done in " in rest[-1]
    num_compiled = len(rest)  # the first line is gone, the last is the summary
    assert 1 <= num_compiled < 2 * len(MANY)
    assert len(entries(cache)) == num_compiled
    assert not leftovers(cache)
    manifest = json.loads((cache / "manifest.json").read_text())
    assert len(manifest["kernels"]) == num_compiled
    # What is missing is compiled by the next run, nothing twice.
    again = rlk.jit.warm(MANY[:5], op="linear_logp", dtype="fp32", arch=LEVEL, cache_dir=cache)
    assert len(again.present) + len(again.compiled) == 10
    assert not set(again.compiled) & set(manifest["kernels"])


def test_a_cuda_compile_is_cancelled_in_the_middle(cache):
    models = [f"V={vocab},D=4096" for vocab in range(32000, 32008)]
    process = subprocess.Popen(
        words(cache, "--arch", "sm_90a", "--jobs", "1", *models),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not cache.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if process.poll() == 1:
        said = process.communicate()[1]
        if "NVRTC" in said:
            pytest.skip(said)
    time.sleep(0.3)  # it compiles by now
    process.terminate()
    out, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert " not done in " in out.splitlines()[-1]
    assert said == "rlk-jit: interrupted by SIGTERM; what is done is kept\n"
    assert not leftovers(cache)


def test_two_at_once_compile_nothing_twice(cache):
    both = [
        subprocess.Popen(
            words(cache, "--json", "--arch", LEVEL, *MANY[:6]), stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outcomes = [json.loads(process.communicate()[0])["kernels"] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    compiled = [
        kernel["name"] for kernels in outcomes for kernel in kernels
        if kernel["outcome"] == "compiled"
    ]  # fmt: skip
    assert len(compiled) == len(set(compiled)) == 12
    assert all(kernel["outcome"] in ("compiled", "present") for k in outcomes for kernel in k)
    assert len(entries(cache)) == 12


def warmed(cache, *more):
    """Constants of the kernels that are compiled."""
    asked = ["warm", "--cache-dir", str(cache), "--dtype", "fp32", "--arch", LEVEL, *more]
    ended = subprocess.run(command(asked), capture_output=True, text=True, check=True)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("compiled ")]
    return {line.split()[1].split("[")[0] + line.split("[x=f32")[1].split("]")[0] for line in lines}


def test_linear_layers_are_warmed_where_the_op_is_asked_for(cache, tmp_path):
    # The product, and the gradient of its input; that of the weight is built in.
    layer = {"det_gemm.fwd K=24 N=40", "det_gemm.fwd K=40 N=24"}
    assert warmed(cache, "--op", "det_gemm", "K=24,N=40") == layer
    config = {
        "vocab_size": 99,
        "hidden_size": 16,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    sizes = {"K=16 N=16", "K=16 N=8", "K=16 N=48", "K=48 N=16"}
    found = warmed(cache, "--op", "det_gemm", "--pass", "fwd", str(tmp_path))
    assert found == {f"det_gemm.fwd {size}" for size in sizes}


def test_without_the_op_no_linear_layer_is_warmed(cache):
    found = warmed(cache, "V=40,D=24", "--pass", "fwd")
    assert found
    assert not any("det_gemm" in name for name in found)


def test_a_layer_that_is_none_is_refused(cache):
    for word in ("K=24", "N=40", "K=24,N=0", "K=24,K=40", "N=40,K=24,V=7"):
        ended = run(cache, "--arch", LEVEL, word)
        assert ended.returncode == 2
        assert "expected K=4096,N=12288" in ended.stderr
