"""What this machine and the project's own files say where nobody says otherwise: its card, its versions."""

import os

import pytest

from finitune import check
from finitune.diagnosis.logged.incidents import diagnose_logs

HALF = "learning_rate: 1.0e-5\nbf16: true\ndeepspeed: z.json\n"
ZERO = '{"zero_optimization": {"stage": 2, "overlap_comm": true}, "bf16": {"enabled": true}}'
LOCKS = {
    "uv.lock": '[[package]]\nname = "deepspeed"\nversion = "0.13.1"\n',
    "pdm.lock": '[[package]]\nname = "deepspeed"\nversion = "0.13.1"\n',
    "poetry.lock": '[[package]]\nname = "deepspeed"\nversion = "0.13.1"\n',
    "Pipfile.lock": '{"default": {"deepspeed": {"version": "==0.13.1"}}}',
    "requirements.txt": "deepspeed==0.13.1\n",
    "requirements-train.txt": "deepspeed==0.13.1\n",
    "environment.yml": "dependencies:\n  - pip:\n    - deepspeed==0.13.1\n",
    "pyproject.toml": '[project]\nname = "p"\ndependencies = ["deepspeed==0.13.1"]\n',
}


@pytest.fixture
def config(tmp_path):
    (tmp_path / "z.json").write_text(ZERO)
    (tmp_path / "a.yaml").write_text(HALF)
    return tmp_path / "a.yaml"


@pytest.fixture
def card(tmp_path, monkeypatch):
    def has(name: str) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "nvidia-smi").write_text(f"#!/bin/sh\necho '{name}'\n")
        (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    return has


@pytest.mark.parametrize("name", LOCKS)
def test_fires_for_the_versions_of_the_project(config, name):
    (config.parent / name).write_text(LOCKS[name])
    result = check(config, gpu="A100")
    assert "comm-overlap-race" in {one.cause for one in result.findings}
    assert any(f"{name} for the versions" in line for line in result.understood)


def test_the_root_of_the_project_counts_and_nothing_above_it(config):
    inner = config.parent / "repo" / "conf"
    inner.mkdir(parents=True)
    (config.parent / "requirements.txt").write_text(LOCKS["requirements.txt"])
    for name in ("a.yaml", "z.json"):
        (inner / name).write_text((config.parent / name).read_text())
    (inner.parent / "setup.py").write_text("")
    assert "comm-overlap-race" not in {one.cause for one in check(inner / "a.yaml", gpu="A100").findings}
    (inner.parent / "requirements.txt").write_text(LOCKS["requirements.txt"])
    assert "comm-overlap-race" in {one.cause for one in check(inner / "a.yaml", gpu="A100").findings}


def test_stays_quiet_where_requirements_are_given(config, tmp_path):
    (config.parent / "uv.lock").write_text(LOCKS["uv.lock"])
    (tmp_path / "other.txt").write_text("deepspeed==0.19.3\n")
    result = check(config, gpu="A100", requirements=tmp_path / "other.txt")
    assert "comm-overlap-race" not in {one.cause for one in result.findings}


def test_fires_for_the_card_of_this_machine(config, card):
    card("Tesla V100-SXM2-32GB")
    result = check(config)
    assert "bf16-emulated-hardware" in {one.cause for one in result.findings}
    assert any(line.startswith("V100 as card, which nvidia-smi shows here") for line in result.understood)


@pytest.mark.parametrize("said", ["No devices were found", "Some Card 9000"])
def test_stays_quiet_about_a_card_that_is_not_known(config, card, said):
    card(said)
    assert "gpu" in {one.input for one in check(config).not_checked}


def test_a_log_may_be_of_another_machine(config, card):
    card("Tesla V100-SXM2-32GB")
    (config.parent / "t.log").write_text("step 1: loss 2.0\nstep 2: loss nan\nstep 3: loss nan\n")
    (incident,) = diagnose_logs(config.parent / "t.log", configs=[config]).incidents
    assert "V100" not in str(incident)


def test_without_a_lock_the_versions_are_those_of_this_environment(config):
    """That they were guessed so is said; what --requirements says is taken alone."""
    assert any(line.startswith("this environment (") and "numpy" in line for line in check(config).understood)
    (config.parent / "own.txt").write_text("torch==2.1.0\n")
    result = check(config, requirements=config.parent / "own.txt")
    assert [line for line in result.understood if "for the versions" in line] == [
        f"{config.parent / 'own.txt'} for the versions of packages"
    ]
