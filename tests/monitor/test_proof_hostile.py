"""A captured step from a stranger: no code is imported or fetched, no file elsewhere touched, no memory filled."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from safetensors.torch import save_file  # noqa: E402
from tests.monitor.test_proof import copy, llama, strike_out, without_weights  # noqa: E402, F401 (fixtures)

from finitune.cli.main import main  # noqa: E402
from finitune.gym.models import tiny  # noqa: E402
from finitune.monitor.capture.model_keys import configuration, lora  # noqa: E402
from finitune.monitor.proof import prove  # noqa: E402

LORA = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "lora_alpha": 4, "megatron_core": "megatron.core"}
EVIL = {**LORA, "megatron_config": {"a": 1}, "megatron_core": "megatron.evil"}


def change(run_dir: Path, **model: object) -> None:
    (capture,) = run_dir.glob("captures/*[0-9].json")
    data = json.loads(capture.read_text())
    capture.write_text(json.dumps({**data, "model": {**data["model"], **model}}))


def config(run_dir: Path, **settings: object) -> None:
    (capture,) = run_dir.glob("captures/*[0-9].json")
    change(run_dir, config={**json.loads(capture.read_text())["model"]["config"], **settings})


def refused(run_dir: Path, model: Path | None = None) -> str:
    before = (run_dir / "rank00000.jsonl").read_bytes()
    (line,) = prove(run_dir, model=model)
    assert "nothing was run: " in line, line
    assert "\n" not in line
    assert (run_dir / "rank00000.jsonl").read_bytes() == before
    return line


@pytest.fixture
def canary(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """A module in the recording that leaves a file behind when it is imported from there."""
    (copy / "megatron").mkdir()
    written = tmp_path / "executed"
    (copy / "megatron" / "evil.py").write_text(f"open({str(written)!r}, 'w').close()\n")
    monkeypatch.chdir(copy)
    monkeypatch.syspath_prepend(str(copy))
    yield written
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]


def test_the_adapter_of_a_capture_imports_nothing(copy: Path, canary: Path) -> None:  # noqa: F811
    weights = without_weights(copy)
    (copy / "last-good").mkdir()
    save_file(weights, copy / "last-good" / "model.safetensors")
    change(copy, adapters={"default": EVIL})
    assert "megatron_config" in refused(copy)
    assert not canary.exists()


@pytest.mark.parametrize("where", ["last-good", "model"])
def test_the_configuration_of_an_adapter_is_not_followed(copy: Path, canary: Path, tmp_path: Path, where: str) -> None:  # noqa: F811
    without_weights(copy)
    base = tmp_path / "base"
    tiny("llama").save_pretrained(base)
    adapter = copy / "last-good" if where == "last-good" else tmp_path / "adapter"
    peft.get_peft_model(tiny("llama"), peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(adapter)
    (adapter / "adapter_config.json").write_text(json.dumps({**EVIL, "base_model_name_or_path": str(base)}))
    stem = "base_model.model.model.layers"
    names = [f"{stem}.{n}.self_attn.q_proj.lora_{m}.default.weight" for n in (0, 1) for m in "AB"]
    change(copy, adapters={"default": LORA}, path=str(base), trained=names)
    prove(copy, model=None if where == "last-good" else adapter)
    assert not canary.exists()


SPOILT = {
    "class without config": {"class": "transformers.Trainer"},
    "class of another kind": {"class": "transformers.logging"},
    "no class": {"class": 3}, "attention of the hub": {"attention": "a/b"}, "dtype is a function": {"dtype": "load"},
    "dtype of integers": {"dtype": "int64"}, "other dtypes": {"other_dtypes": {"x": "save"}},
    "place": {"place": "a." * 10**5},
    "place of no name": {"place": "a/../b"}, "trained": {"trained": 5}, "adapters": {"adapters": []},
    "two adapters": {"adapters": {"a": LORA, "b": LORA}}, "another adapter": {"adapters": {"a": {"peft_type": "IA3"}}},
    "huge rank": {"adapters": {"a": {**LORA, "r": 10**9}}}, "checkpointing": {"checkpointing": {"x": "y"}},
    "regular expression": {"adapters": {"a": {**LORA, "target_modules": "(([a-z_.0-9])+)+!"}}},
    "pattern": {"adapters": {"a": {**LORA, "rank_pattern": {"((a)+)+!": 2}}}},
    "no config": {"config": None}, "config is a list": {"config": [1]},
}  # fmt: skip
SETTINGS = {
    "hidden 0": {"hidden_size": 0}, "no such activation": {"hidden_act": "evil"},
    "layers": {"num_hidden_layers": 10**9},
    "vocabulary": {"vocab_size": 10**9}, "width": {"intermediate_size": 10**8}, "a word": {"hidden_size": "many"},
    "code": {"auto_map": {"AutoModel": "evil--Model"}}, "quantised": {"quantization_config": {"quant_method": "evil"}},
    "backbone": {"backbone": "evil/hub", "use_timm_backbone": True}, "kernels": {"use_kernels": True},
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_description_is_one_line(copy: Path, name: str) -> None:  # noqa: F811
    change(copy, **SPOILT[name])
    refused(copy)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_spoilt_configuration_is_one_line(copy: Path, name: str) -> None:  # noqa: F811
    config(copy, **SETTINGS[name])
    refused(copy)


def test_a_regular_expression_is_replaced_by_the_modules_that_were_trained() -> None:
    settings = {**LORA, "target_modules": ".*(q_proj|v_proj)"}
    trained = [f"base_model.model.model.layers.0.self_attn.{one}.lora_A.default.weight" for one in ("q_proj", "v_proj")]
    found = lora(settings, trained)
    assert found["target_modules"] == ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj"]
    assert peft.LoraConfig(**found).r == 2


def test_an_ordinary_configuration_is_kept() -> None:
    model = tiny("llama")
    kept = configuration(type(model), json.loads(json.dumps(model.config.to_dict(), default=str)))
    again = type(model).config_class.from_dict(kept)
    assert {**again.to_dict(), "dtype": 0} == {**model.config.to_dict(), "dtype": 0}


SPOILT_CAPTURES = {
    "weights elsewhere": {"weights": "../x"}, "weights of a pipe": {"weights": 5}, "no model": {"model": None},
    "no scale": {"scale": "x"}, "micro-steps": {"micro_steps": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT_CAPTURES)
def test_a_spoilt_capture_of_wrong_types_is_one_line(copy: Path, name: str) -> None:  # noqa: F811
    (capture,) = copy.glob("captures/*[0-9].json")
    capture.write_text(json.dumps({**json.loads(capture.read_text()), **SPOILT_CAPTURES[name]}))
    refused(copy)


def test_an_objective_that_is_none_is_not_called_sound(copy: Path) -> None:  # noqa: F811
    (capture,) = copy.glob("captures/*[0-9].json")
    data = json.loads(capture.read_text())
    data["micro_steps"][0]["objective"] = {"term": "Evil", "kept": {"dict": {}}, "inputs": []}
    capture.write_text(json.dumps(data))
    assert "Evil" in refused(copy)


def test_a_world_that_is_no_number(copy: Path) -> None:  # noqa: F811
    header = json.loads((copy / "header.json").read_text())
    (copy / "header.json").write_text(json.dumps({**header, "world": "abc"}))
    (line,) = prove(copy)
    assert "fails again" in line


@pytest.mark.skipif(sys.platform == "win32", reason="needs links and pipes")
@pytest.mark.parametrize("ending", [".json", ".safetensors", "-weights.safetensors"])
@pytest.mark.parametrize("kind", ["outside", "pipe"])
def test_files_of_a_capture_lie_in_the_recording(copy: Path, tmp_path: Path, ending: str, kind: str) -> None:  # noqa: F811
    (capture,) = copy.glob("captures/*[0-9].json")
    file = capture.with_name(f"{capture.stem}{ending}")
    file.rename(tmp_path / "elsewhere")
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / "elsewhere")
    assert file.name in refused(copy)


@pytest.mark.skipif(sys.platform == "win32", reason="needs links")
def test_nothing_is_appended_outside(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (copy / "rank00000.jsonl").rename(copy / "rankA-rank00000.jsonl")
    (copy / "rank00000.jsonl").symlink_to(victim)
    assert main(["diagnose", str(copy), "--prove"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert victim.read_text() == "mine\n"
