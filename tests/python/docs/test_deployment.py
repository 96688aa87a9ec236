# SPDX-License-Identifier: Apache-2.0
"""docs/deployment.md: every block in it is run, with stand-ins for docker, Slurm and pip."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from devices import host_levels
from paths import ROOT
from rights import mount_with_fs_group

PAGE = (ROOT / "docs/deployment.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

# What stands for the reader's own training script: at start the page's words, then the job.
JOB = """
import json, os
import ml_dtypes, numpy as np

with open(os.environ["TEST_CONFIG"]) as file:
    shape = json.load(file)
hidden = np.ones((3, shape["hidden_size"]), ml_dtypes.bfloat16)
weight = np.ones((shape["vocab_size"], shape["hidden_size"]), ml_dtypes.bfloat16)
rlk.jit.linear_logp(hidden, weight, np.array([1, 2, 3]))
rlk.jit.linear_logp_backward(np.ones(3, np.float32), hidden, weight, np.array([1, 2, 3]))
with open(os.environ["TEST_REPORT"], "a") as file:
    print(json.dumps({**rlk.jit.cache_info()._asdict(), **rlk.jit.settings()}), file=file)
"""


def blocks(language: str) -> list[str]:
    found = [text for name, text in BLOCKS if name == language]
    assert found, f"docs/deployment.md: expected a block of {language}, found none"
    return found


def with_host(text: str) -> str:
    """There is no GPU here: what is compiled for one is compiled for the processor as well."""
    assert "--arch sm_90a" in text
    return text.replace("--arch sm_90a", f"--arch sm_90a --arch {host_levels()[-1]}")


@dataclass
class Site:
    """A folder where the page's commands run: its files, its programs, its variables."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("RLK_")}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=kept | self.variables | {"PATH": path} | variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done

    def program(self, name: str, body: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def reports(self) -> list[dict]:
        """What each run of the training script has said of its kernels."""
        file = self.folder / "report"
        return [json.loads(line) for line in file.read_text().splitlines()]


def make_site(folder: Path) -> Site:
    for name in ("bin", "home", "tmp", "model", "build/wheel"):
        (folder / name).mkdir(parents=True)
    made = Site(
        folder,
        {
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "USER": "somebody",
            "TEST_CONFIG": str(folder / "model/config.json"),
            "TEST_REPORT": str(folder / "report"),
        },
    )
    (folder / "model/config.json").write_text('{"vocab_size": 320, "hidden_size": 64}')
    (folder / "build/wheel/rlk-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl").touch()
    (folder / "train.py").write_text("\n".join(blocks("python")) + JOB)
    interpreter = shlex.quote(sys.executable)
    made.program("python", f'exec {interpreter} "$@"')
    made.program("rlk-jit", f'exec {interpreter} -c "from rlk._cli import main; main()" "$@"')
    made.program("pip", f'echo "$@" >> {shlex.quote(str(folder / "pip"))}')
    made.program("srun", 'while [[ $1 == -* ]]; do shift; done\nexec "$@"')
    return made


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path / "site")


def test_every_block_is_of_a_kind_that_is_run():
    assert {language for language, _ in BLOCKS} == {"dockerfile", "python", "sh", "bash", "yaml"}


def test_every_variable_is_one_of_the_settings():
    settings = (ROOT / "docs/settings.md").read_text()
    known = set(re.findall(r"^\| `(RLK_[A-Z_]+)`", settings, re.MULTILINE)) | {"RLK_PYTHON"}
    assert set(re.findall(r"RLK_[A-Z_]+", PAGE)) <= known


def check_pip(site: Site, root: Path) -> None:
    """pip has a stand-in: a wheel takes minutes to build. What it was told is looked at here."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (words,) = (line.split() for line in (site.folder / "pip").read_text().splitlines())
    assert words[0] == "install"
    for requirement in words[1:]:
        wheel, extra = re.fullmatch(r"(.*)\[(\w+)\]", requirement).groups()
        assert Path(wheel).is_file()
        assert Path(wheel).is_relative_to(root)
        assert extra in extras["optional-dependencies"]
    (site.folder / "pip").unlink()


class Image:
    """Runs a Dockerfile; each stage's root is a folder, and absolute paths lead into it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.roots: dict[str, Path] = {}
        self.root = Path()
        self.variables: dict[str, str] = {}
        self.command: list[str] = []

    def inside(self, text: str, root: Path | None = None) -> str:
        return re.sub(r"(?<![\w./*])/(?=[a-z])", f"{root or self.root}/", text)

    def build(self, text: str) -> None:
        lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
        for line in filter(None, lines):
            verb, _, rest = line.partition(" ")
            getattr(self, verb.lower())(rest)

    def from_(self, rest: str) -> None:
        words = rest.split()
        name = words[2] if words[1:2] == ["AS"] else f"stage{len(self.roots)}"
        self.root = self.roots[name] = self.site.folder / "images" / name
        self.root.mkdir(parents=True)
        self.variables = {}

    def copy(self, rest: str) -> None:
        *flags, source, target = rest.split()
        origin = self.site.folder / source
        if flags:
            (flag,) = flags
            stage = self.roots[flag.removeprefix("--from=")]
            origin = Path(self.inside(source, stage))
        goal = Path(self.inside(target))
        goal.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir():
            shutil.copytree(origin, goal, dirs_exist_ok=True)
        else:
            shutil.copy2(origin, goal)

    def run(self, rest: str) -> None:
        is_pip = rest.startswith("pip ")
        self.site.run(self.inside(rest if is_pip else with_host(rest)), **self.variables)
        if is_pip:
            check_pip(self.site, self.root)

    def env(self, rest: str) -> None:
        self.variables |= dict(word.split("=", 1) for word in shlex.split(self.inside(rest)))

    def cmd(self, rest: str) -> None:
        self.command = [self.inside(word) for word in json.loads(rest)]

    def __getattr__(self, name: str):
        if name == "from":
            return self.from_
        raise AttributeError(f"Dockerfile: the test does not know {name.upper()}")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Built, which compiles what Slurm's job needs too."""
    (text,) = blocks("dockerfile")
    made = Image(make_site(tmp_path_factory.mktemp("image") / "site"))
    made.build(text)
    return made


def test_the_image_compiles_at_its_build_alone(image):
    site = image.site
    names = json.loads((image.root / "opt/kernels/manifest.json").read_text())["kernels"]
    # A forward for each class of rows, and a backward; logp's two; grpo_loss's gradient.
    assert [name.rpartition("@")[2] for name in names].count("sm_90a") == 10
    for path in (image.root / "opt/kernels").rglob("*"):
        assert path.stat().st_mode & 0o044 == 0o044, f"{path}: not to be read by all"
    site.run(shlex.join(image.command), **image.variables)
    (report,) = site.reports()
    assert report["policy"] == "off"
    assert (report["compiles"], report["fallbacks"]) == (0, 0)
    assert report["disk_hits"] == 4  # preloaded, both ops' of the processor
    assert not (site.folder / "home/.cache").exists()


def test_the_pack_of_a_release_is_a_layer(site):
    block, *_ = blocks("sh")
    made = site.folder / "rlk-0.1.0-kernels.pack"
    make = [sys.executable, ROOT / "release/make_pack.py", made, site.folder / "made"]
    choice = ["--head", "V=320,D=64", "--arch", host_levels()[-1]]
    subprocess.run([*make, *choice], check=True, capture_output=True)
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    layer = site.folder / "opt/rlk-kernels"
    script = block.replace("VERSION", "0.1.0").replace("HEX", digest)
    (site.folder / "train.py").write_text("import rlk\n" + JOB)
    site.run(script.replace("/opt/rlk-kernels", str(layer)) + "python train.py")
    (report,) = site.reports()
    assert (report["policy"], report["compiles"], report["fallbacks"]) == ("sync", 0, 0)
    assert report["disk_hits"] == 2
    assert {path.stat().st_mode & 0o044 for path in layer.rglob("*.rlk")} == {0o044}


def test_a_trace_is_recorded_and_warmed(site):
    _, trace, *_ = blocks("sh")
    record, warm = trace.splitlines()
    # Nothing is warm yet, so the job's own preload would refuse.
    (site.folder / "train.py").write_text("import rlk\n" + JOB)
    site.run(record, RLK_JIT="off")
    (report,) = site.reports()
    assert report["compiles"] == 0
    assert report["fallbacks"] >= 2
    assert len((site.folder / "kernels.txt").read_text().splitlines()) == 2
    assert "2 compiled, 0 present, 0 failed" in site.run(warm).stdout
    site.run("python train.py", RLK_JIT="off")
    assert site.reports()[1]["disk_hits"] == 2


def test_the_slurm_job_runs_what_was_warmed(site, image):
    _, _, warm, pack, health = blocks("sh")
    (job,) = blocks("bash")
    assert job.startswith("#!/bin/bash\n#SBATCH ")
    # The image's kernels are those that the page warms here, so nothing is left to be compiled.
    kernels = site.folder / "home/kernels"
    shutil.copytree(image.root / "opt/kernels", kernels)
    (kernels / "manifest.json").unlink()
    num_kernels = len(list(kernels.glob("*.rlk")))
    assert f"0 compiled, {num_kernels} present, 0 failed" in site.run(with_host(warm)).stdout
    site.run(job)
    told = site.run(health, RLK_CACHE_PATH=str(kernels)).stdout
    assert "10 of 10 of the models' kernels are cached" in told
    (report,) = site.reports()
    assert report["policy"] == "sync"
    assert (report["compiles"], report["fallbacks"], report["disk_hits"]) == (0, 0, 4)
    own = site.folder / "tmp/kernels-somebody"
    assert report["cache_dir"] == str(own)
    assert not own.exists()
    assert re.search(r"\b[0-9a-f]{64}\b", site.run(pack).stdout)
    site.run("python train.py", RLK_CACHE_DIR=str(own), RLK_JIT="off")
    assert site.reports()[1]["disk_hits"] == 4


def check_volume(site: Site, **variables: str) -> None:
    """Pods on one volume, whose rights the kubelet sets anew at each mount."""
    volume = site.folder / "cache"
    volume.mkdir()
    (site.folder / "train.py").write_text("import rlk\n" + JOB + "\nrlk.jit.wait()\n")
    group = 54321 if os.geteuid() == 0 else None
    for _ in range(3):
        mount_with_fs_group(volume, group)
        assert site.run("python train.py", **variables).stderr == ""
    for report in site.reports()[1:]:
        assert (report["compiles"], report["fallbacks"], report["disk_hits"]) == (0, 0, 2)


def test_the_pods_of_kubernetes(site):
    for text in blocks("yaml"):
        pod = yaml.safe_load(text)["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        for container in pod["containers"]:
            mounts = container.get("volumeMounts", ())
            assert {mount["name"] for mount in mounts} == volumes
            variables = {each["name"]: each["value"] for each in container.get("env", ())}
            if "RLK_CACHE_DIR" in variables:
                (mount,) = mounts
                assert Path(variables["RLK_CACHE_DIR"]).parent == Path(mount["mountPath"])
                variables["RLK_CACHE_DIR"] = str(site.folder / "cache/rlk")
                check_volume(site, **variables)
            # Every value is one that rlk takes.
            site.run("python -c 'import rlk; rlk.jit.cache_info()'", **variables)
            if "startupProbe" in container:
                site.run(shlex.join(container["startupProbe"]["exec"]["command"]), **variables)


def test_the_messages_are_those_of_the_code():
    table = PAGE.partition("## Troubleshooting")[2]
    sources = "".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text())
        for folder in ("cache", "cli", "jit", "runtime", "python/rlk")
        for pattern in ("*.cpp", "*.hpp", "*.py")
        for path in (ROOT / folder).rglob(pattern)
    )
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert len(rows) > 5
    for row in rows:
        if "(pip)" in row:
            continue
        for message in re.findall(r"`([^`]+)`", row):
            if message.startswith("RLK_"):
                continue
            for part in filter(None, (each.strip(" :") for each in message.split("..."))):
                known = part in sources or part.replace("nvidia-cuda-nvrtc-cu12", "{}") in sources
                assert known, f"{message}: no source has {part!r}"
