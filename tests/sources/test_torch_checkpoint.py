"""PyTorch .bin checkpoints, through the restricted loader alone."""

from __future__ import annotations

import os

import pytest

from finitune.finding import UnreadableInput
from finitune.sources.weights import checkpoint, torch_checkpoint

torch = pytest.importorskip("torch")
reads = pytest.mark.skipif(torch_checkpoint.why_not_opened() is not None, reason="this torch does not say the places")


def saved(directory, tensors, name="pytorch_model.bin"):
    torch.save(tensors, directory / name)
    return directory


@reads
def test_the_same_weights_give_the_same_facts_in_both_formats(tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    tensors = {"model.embed_tokens.weight": torch.randn(50, 16).bfloat16(), "norm.weight": torch.ones(16)}
    tensors["model.embed_tokens.weight"][3] = 0
    (tmp_path / "bin").mkdir()
    (tmp_path / "safe").mkdir()
    saved(tmp_path / "bin", tensors)
    save_file(tensors, tmp_path / "safe" / "model.safetensors")
    one, other = (checkpoint.read(tmp_path / kind, compute="float16").facts for kind in ("bin", "safe"))
    assert one.rows is not None
    assert other.rows is not None
    assert one.rows.rms.tolist() == other.rows.rms.tolist()
    seen = [[(t.name, t.peak, t.rms, t.nonfinite) for t in facts.weights.tensors] for facts in (one, other)]
    assert sorted(seen[0]) == sorted(seen[1])


@reads
def test_a_nan_is_found_and_views_keep_their_place(tmp_path):
    whole = torch.ones(4, 3)
    whole[2, 1] = float("nan")  # the fault is exactly that: a damaged weight
    saved(tmp_path, {"state_dict": {"a": whole, "tail": whole[2:], "turned": whole.t(), "step": torch.tensor(3)}})
    tensors = {t.name: t for t in torch_checkpoint.read_header(tmp_path / "pytorch_model.bin")}
    assert set(tensors) == {"a", "tail", "turned"}
    assert tensors["tail"].start - tensors["a"].start == 6 * 4
    assert tensors["turned"].shape == (12,)
    facts = checkpoint.read(tmp_path).facts
    assert {t.name: t.nonfinite for t in facts.weights.tensors} == {"a": 1, "tail": 1, "turned": 1}


class Hostile:
    def __reduce__(self):
        return os.system, ("touch owned",)


@pytest.mark.parametrize("content", [b"", b"cos\nsystem\n(S'touch owned'\ntR.", b"PK\x03\x04 not a zip", "hostile"])
def test_a_file_that_is_refused_is_one_line_and_runs_nothing(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    if content == "hostile":
        torch.save({"a": Hostile()}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(UnreadableInput) as caught:
        torch_checkpoint.read_header(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "owned").exists()


def test_a_file_cut_short_is_refused(tmp_path):
    path = saved(tmp_path, {"a": torch.ones(5000)}) / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(UnreadableInput):
        torch_checkpoint.read_header(path)


def test_without_torch_it_is_said_to_be_not_checked(tmp_path, monkeypatch):
    saved(tmp_path, {"a": torch.ones(2)})
    monkeypatch.setattr(torch_checkpoint, "why_not_opened", lambda: "torch is not installed")
    reading = checkpoint.read(tmp_path)
    assert ["pickles" in entry.why for entry in reading.not_checked] == [True]
