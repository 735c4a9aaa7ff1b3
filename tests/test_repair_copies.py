"""Copies that a repair writes: casts, rows of related tokens, tied heads, adapters, and the way back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.sources import worlds
from tests.sources.worlds import jsonl

from finitune.cli.main import main
from finitune.finding import UnreadableInput
from finitune.preflight import check
from finitune.repairs.repair import repair
from finitune.repairs.undoing import undo

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def weights_of(directory: Path) -> dict[str, np.ndarray]:
    return {name: values for file in directory.glob("*.safetensors") for name, values in load_file(file).items()}


def digests(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("stored", "wanted"), [("bfloat16", "float32"), ("bfloat16", "float16"), ("float32", "bfloat16")]
)
def test_every_tensor_is_cast_and_the_copy_says_so(tmp_path: Path, stored: str, wanted: str, shards: int) -> None:
    model = worlds.model(tmp_path / "m", worlds.tensors(dtype=stored), shards=shards, dtype=stored)
    if shards > 1:
        index = model / "model.safetensors.index.json"
        held = json.loads(index.read_text())
        index.write_text(json.dumps({"metadata": {"total_size": 1}, **held}, indent=2))
    before = digests(model)
    result = repair("cast-weights", model=model, dtype=wanted, output=tmp_path / "new")
    old, new = weights_of(model), weights_of(tmp_path / "new")
    assert digests(model) == before
    assert old.keys() == new.keys()
    for name, values in old.items():
        assert new[name].dtype == worlds.DTYPES[wanted]
        np.testing.assert_array_equal(new[name], values.astype(np.float32).astype(worlds.DTYPES[wanted]))
    assert json.loads((tmp_path / "new" / "config.json").read_text())["dtype"] == wanted
    if shards > 1:
        total = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
        assert total == sum(values.nbytes for values in new.values())
    manifest = json.loads((tmp_path / "new" / "finitune-repair.json").read_text())
    cast = {c["tensor"]: (c["before"], c["after"]) for c in manifest["changes"] if c["tensor"]}
    assert cast == dict.fromkeys(old, (stored, wanted))
    assert result.undo == [str(tmp_path / "new")]
    assert not check(model=tmp_path / "new").findings or check(model=model).findings


def test_some_modules_alone_are_cast_and_the_rest_keeps_its_bytes(tmp_path: Path) -> None:
    model = worlds.model(tmp_path / "m", dtype="bfloat16")
    repair("cast-weights", model=model, dtype="float32", modules="lm_head,*norm*", output=tmp_path / "new")
    old, new = weights_of(model), weights_of(tmp_path / "new")
    wide = {name for name, values in new.items() if values.dtype == np.float32}
    assert wide == {name for name in old if name.startswith("lm_head.") or "norm" in name}
    assert all(new[name].tobytes() == old[name].tobytes() for name in old.keys() - wide)
    assert json.loads((tmp_path / "new" / "config.json").read_text())["dtype"] == "bfloat16"


def test_what_overflows_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    weights = worlds.tensors()
    weights[HEAD][3, 2] = 7e4
    model = worlds.model(tmp_path / "m", weights)
    with pytest.raises(UnreadableInput, match=r"lm_head.weight: beyond the range of float16"):
        repair("cast-weights", model=model, dtype="float16", output=tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    repair("cast-weights", model=model, dtype="float16", modules="model", output=tmp_path / "new")
    assert weights_of(tmp_path / "new")[HEAD].dtype == ml_dtypes.bfloat16


def test_what_vanishes_is_counted(tmp_path: Path) -> None:
    weights = worlds.tensors()
    weights[HEAD][3] = np.full(worlds.HIDDEN, 1e-9, ml_dtypes.bfloat16)
    model = worlds.model(tmp_path / "m", weights)
    result = repair("cast-weights", model=model, dtype="float16", output=tmp_path / "new")
    assert {c.tensor: c.vanished for c in result.changes if c.vanished} == {HEAD: worlds.HIDDEN}


def test_a_cast_that_does_not_read_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = worlds.model(tmp_path / "m")
    from finitune.repairs import casts

    monkeypatch.setattr(casts, "_copy_tensor", lambda tensor, out: out.write(b"\0" * (tensor.stop - tensor.start)))
    with pytest.raises(UnreadableInput, match="did not read back"):
        repair("cast-weights", model=model, dtype="float32", modules="lm_head", output=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_related_row_gives_its_direction_and_the_median_its_length(tmp_path: Path) -> None:
    weights = worlds.tensors(dtype="float32")
    weights[EMBEDDING][[6, 7]] = 0
    model = worlds.model(tmp_path / "m", weights)
    repair("reinit-token-rows", model=model, tokens="6,7", like="9,8", output=tmp_path / "new")
    new = weights_of(tmp_path / "new")[EMBEDDING].astype(np.float64)
    lengths = np.linalg.norm(np.delete(new, [6, 7], axis=0), axis=1)
    for token, like in ((6, 9), (7, 8)):
        np.testing.assert_allclose(np.linalg.norm(new[token]), np.median(lengths), rtol=1e-5)
        np.testing.assert_allclose(
            new[token] / np.linalg.norm(new[token]), new[like] / np.linalg.norm(new[like]), rtol=1e-5
        )


@pytest.mark.parametrize("shards", [1, 3])
def test_a_tied_head_that_is_stored_all_the_same_gets_the_same_rows(tmp_path: Path, shards: int) -> None:
    weights = worlds.tensors()
    weights[EMBEDDING][6] = 0
    weights[HEAD] = weights[EMBEDDING].copy()
    model = worlds.model(tmp_path / "m", weights, shards=shards, tie_word_embeddings=True)
    repair("reinit-token-rows", model=model, tokens="6,9", output=tmp_path / "new")
    new = weights_of(tmp_path / "new")
    assert new[EMBEDDING].tobytes() == new[HEAD].tobytes()
    assert not np.array_equal(new[EMBEDDING][9], weights[EMBEDDING][9])


def test_an_adapter_that_saved_its_embedding_is_repaired(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    rows = worlds.tensors()[EMBEDDING]
    rows[6] = 0
    names = {
        "base_model.model.model.embed_tokens.weight": rows,
        "base_model.model.lm_head.lora_A.weight": rows[:4].copy(),
    }
    save_file(names, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    result = repair("reinit-token-rows", model=adapter, tokens="6", output=tmp_path / "new")
    assert {(c.tensor, c.row) for c in result.changes} == {("base_model.model.model.embed_tokens.weight", 6)}
    assert np.abs(weights_of(tmp_path / "new")["base_model.model.model.embed_tokens.weight"][6].astype(float)).sum() > 0


def test_a_copy_is_removed_only_as_it_was_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, new = worlds.model(tmp_path / "m"), tmp_path / "new"
    before = digests(tmp_path)
    for spoil in (new / "more.txt", new / "config.json", None):
        repair("reinit-token-rows", model=model, tokens="6", output=new)
        if spoil is not None:
            kept = spoil.read_bytes() if spoil.exists() else None
            spoil.write_bytes(b"{} ")
            assert main(["repair", "--undo", str(new)]) == 2
            assert f"{spoil}: changed since the repair" in capsys.readouterr().err
            spoil.unlink() if kept is None else spoil.write_bytes(kept)
        assert main(["repair", "--undo", str(new)]) == 0
        assert digests(tmp_path) == before
    repair("reinit-token-rows", model=model, tokens="6", output=new)
    (new / "tokenizer.json").unlink()
    with pytest.raises(UnreadableInput, match=r"tokenizer.json: changed"):
        undo(new)


def test_a_patched_copy_is_first_itself_again(tmp_path: Path) -> None:
    model, new = worlds.model(tmp_path / "m"), tmp_path / "new"
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**config, "padding_side": "left"}))
    before = digests(tmp_path)
    repair("cast-weights", model=model, dtype="float32", output=new)
    repair("pad-right", model=new, apply=True)
    assert json.loads((new / "tokenizer_config.json").read_text())["padding_side"] == "right"
    undo(new)
    undo(new)
    assert digests(tmp_path) == before


def test_data_are_removed_only_as_they_were_written(tmp_path: Path) -> None:
    data, new = jsonl(tmp_path / "d.jsonl", [{"text": "a"}, {"text": "b"}]), tmp_path / "new.jsonl"
    before = digests(tmp_path)
    repair("drop-unsupervised-rows", data=data, rows=[1], output=new)
    new.write_text(new.read_text() + "\n")
    with pytest.raises(UnreadableInput, match="changed since the repair"):
        undo(new)
    new.write_text(new.read_text()[:-1])
    undo(new)
    assert digests(tmp_path) == before
