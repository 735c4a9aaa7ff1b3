import hashlib
import json
import sys
from io import BytesIO
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file
from tests.sources import worlds
from tests.sources.worlds import jsonl, one_line, settings

from finitune.finding import UnreadableInput
from finitune.repairs import weights
from finitune.repairs.repair import repair

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TINY = 1e-8


def broken(directory, *, dtype="bfloat16", head=False, shards=1, tied=False):
    """A model whose rows 6 and 7 were never trained, in the output head too where asked."""
    weights = worlds.tensors(dtype=dtype, tied=tied)
    for name in [EMBEDDING, *([HEAD] if head else [])]:
        weights[name][6] = (np.ones(worlds.HIDDEN) * TINY).astype(weights[name].dtype)
        weights[name][7] = 0
    return worlds.model(directory, weights, shards=shards)


def weights_of(directory):
    return {name: values for file in directory.glob("*.safetensors") for name, values in load_file(file).items()}


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def digests(directory):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_only_the_named_rows_change(tmp_path, dtype, shards):
    model = broken(tmp_path / "m", dtype=dtype, head=True, shards=shards)
    before, seal = weights_of(model), digests(model)
    result = repair("reinit-token-rows", model=model, tokens=[6, 7], output=tmp_path / "new")
    after = weights_of(tmp_path / "new")
    assert after.keys() == before.keys()
    for name, old in before.items():
        changed = np.flatnonzero((old.view(np.uint8) != after[name].view(np.uint8)).reshape(len(old), -1).any(axis=1))
        assert changed.tolist() == ([6, 7] if name in (EMBEDDING, HEAD) else []), name
    median = np.median(np.linalg.norm(np.delete(before[EMBEDDING].astype(np.float64), [6, 7], axis=0), axis=1))
    np.testing.assert_allclose(np.linalg.norm(after[EMBEDDING][6:8].astype(np.float64), axis=1), median, rtol=5e-3)
    assert digests(model) == seal
    assert {(c.tensor, c.row) for c in result.changes} == {(t, r) for t in (EMBEDDING, HEAD) for r in (6, 7)}


def test_a_trained_head_and_a_tied_head_are_left_alone(tmp_path):
    for name, model in (("head", broken(tmp_path / "a")), ("tied", broken(tmp_path / "b", tied=True))):
        result = repair("reinit-token-rows", model=model, tokens=[6, 7], output=tmp_path / name)
        assert {c.tensor for c in result.changes} == {EMBEDDING}


def test_the_manifest_lists_every_row_with_its_norms_and_other_files_are_copied(tmp_path):
    model = broken(tmp_path / "m")
    (model / "extra").mkdir()
    (model / "extra" / "note.txt").write_text("kept")
    result = repair("reinit-token-rows", model=str(model), tokens="6-7", output=str(tmp_path / "new"), seed=3)
    manifest = json.loads((tmp_path / "new" / "finitune-repair.json").read_text())
    assert manifest["schema"] == result.schema == "finitune.repair/1"
    assert manifest["tokens"] == [6, 7]
    assert manifest["seed"] == 3
    assert [(c["tensor"], c["row"]) for c in manifest["changes"]] == [(EMBEDDING, 6), (EMBEDDING, 7)]
    first = manifest["changes"][0]
    assert first["norm_before"] == pytest.approx(TINY * 4, rel=0.01)
    assert first["norm_after"] == pytest.approx(
        np.linalg.norm(weights_of(tmp_path / "new")[EMBEDDING][6].astype(np.float64))
    )
    assert (tmp_path / "new" / "extra" / "note.txt").read_text() == "kept"
    same = set(digests_of_files(model)) & set(digests_of_files(tmp_path / "new"))
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= {name for name, _ in same}


def digests_of_files(directory):
    return {(f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for f in directory.iterdir() if f.is_file()}


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    model = broken(tmp_path / "m")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        repair("reinit-token-rows", model=model, tokens=[6, 7], output=tmp_path / name, seed=seed)
    one, two, three = (weights_of(tmp_path / name)[EMBEDDING].tobytes() for name in "abc")
    assert one == two != three


def test_data_that_cannot_be_tokenised_are_not_called_healthy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    model = broken(tmp_path / "m")
    data = jsonl(tmp_path / "d.jsonl", [worlds.chat()])
    with pytest.raises(UnreadableInput, match=r"not checked: .*tokenizers is not installed.*--tokens") as caught:
        repair("reinit-token-rows", model=model, data=data, output=tmp_path / "new")
    one_line(caught.value)
    assert not (tmp_path / "new").exists()


def test_without_tokens_those_that_the_data_use_are_found(tmp_path):
    pytest.importorskip("tokenizers")
    model = broken(tmp_path / "m")
    data = jsonl(tmp_path / "d.jsonl", [worlds.chat()])
    result = repair(
        "reinit-token-rows",
        model=model,
        data=data,
        config=settings(tmp_path / "c.json", fp16=True),
        output=tmp_path / "new",
    )
    assert [c.row for c in result.changes] == [6, 7]
    with pytest.raises(UnreadableInput, match="nothing to repair was found"):
        repair("reinit-token-rows", model=tmp_path / "new", data=data, output=tmp_path / "again")


def test_read_only_links_of_a_cache_become_files_of_their_own(tmp_path):
    blobs = broken(tmp_path / "blobs")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in blobs.iterdir():
        file.chmod(0o444)
        (snapshot / file.name).symlink_to(file)
    seal = digests(blobs)
    repair("reinit-token-rows", model=snapshot, tokens=[6], output=tmp_path / "new")
    assert digests(blobs) == seal
    assert not any(file.is_symlink() for file in (tmp_path / "new").iterdir())
    assert all(file.stat().st_mode & 0o200 for file in (tmp_path / "new").iterdir())


def test_the_output_is_whole_or_absent(tmp_path, monkeypatch):
    model = broken(tmp_path / "m")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "write_json", full_disk)
    with pytest.raises(OSError, match="No space left"):
        repair("reinit-token-rows", model=model, tokens=[6], output=tmp_path / "new")
    assert names(tmp_path) == ["m"]


def test_a_row_that_does_not_read_back_is_refused(tmp_path, monkeypatch):
    model = broken(tmp_path / "m")
    monkeypatch.setattr(
        weights, "encode", lambda values, dtype: np.full(len(values), np.nan, ml_dtypes.bfloat16).tobytes()
    )
    with pytest.raises(UnreadableInput, match="did not read back"):
        repair("reinit-token-rows", model=model, tokens=[6], output=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_disk_that_forgets_is_noticed(tmp_path, monkeypatch):
    model = broken(tmp_path / "m")
    real = Path.open

    def forgetful(self, mode="r", *more, **options):
        return BytesIO() if mode == "r+b" else real(self, mode, *more, **options)

    monkeypatch.setattr(Path, "open", forgetful)
    with pytest.raises(UnreadableInput, match="did not read back"):
        repair("reinit-token-rows", model=model, tokens=[6], output=tmp_path / "new")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": "reinit-token-row"}, "did you mean reinit-token-rows"),
        ({"name": "use-bfloat16"}, "--patch or --apply is needed"),
        ({"model": None}, "--model DIR is needed"),
        ({"model": "absent"}, "not there"),
        ({"output": None}, "--output is needed"),
        ({"output": "m"}, "already there"),
        ({"output": "m/inside"}, "inside of"),
        ({"output": "absent/new"}, "no such directory"),
        ({"tokens": None}, "what to repair"),
        ({"tokens": "6,x"}, "is no number"),
        ({"tokens": "-6"}, "is no number"),
        ({"tokens": "7-6"}, "is no number and no range"),
        ({"tokens": "1-999999999"}, "is no number and no range of at most 1000000"),
        ({"tokens": "1" * 5000}, "is no number"),
        ({"tokens": "64"}, "outside of model.embed_tokens.weight (expected 0 to 63)"),
        ({"tokens": [-1]}, "outside of"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_writes_nothing(tmp_path, monkeypatch, given, expected):
    monkeypatch.chdir(tmp_path)
    model = broken(tmp_path / "m")
    before = names(tmp_path), digests(model)
    arguments = {"name": "reinit-token-rows", "model": "m", "tokens": [6], "output": "new", **given}
    with pytest.raises(UnreadableInput) as caught:
        repair(**arguments)
    assert expected in one_line(caught.value)
    assert (names(tmp_path), digests(model)) == before


def test_damaged_weights_are_not_repaired_over(tmp_path):
    model = broken(tmp_path / "m")
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UnreadableInput, match="expected finite weights"):
        repair("reinit-token-rows", model=model, tokens=[6], output=tmp_path / "new")


def test_a_model_with_no_trained_row_is_one_line(tmp_path):
    model = worlds.model(tmp_path / "m", {EMBEDDING: np.zeros((worlds.VOCABULARY, 4), np.float32)})
    with pytest.raises(UnreadableInput, match="fewer than two trained rows"):
        repair("reinit-token-rows", model=model, tokens=[6], output=tmp_path / "new")
    assert not (tmp_path / "new").exists()


ROWS = [{"prompt": "what ", "completion": word} for word in ("it", "", "is", "")]


def test_rows_without_labels_are_left_out_and_the_others_keep_their_bytes(tmp_path):
    pytest.importorskip("tokenizers")
    data = tmp_path / "d.jsonl"
    lines = [
        b'{"prompt":  "what ", "completion": "it"}\n',
        b"\n",
        b'{"prompt": "what ", "completion": ""}\r\n',
        b'{"text": "is the"}',
    ]
    data.write_bytes(b"".join(lines))
    result = repair(
        "drop-unsupervised-rows", data=data, model=worlds.model(tmp_path / "m"), output=tmp_path / "new.jsonl"
    )
    assert (tmp_path / "new.jsonl").read_bytes() == lines[0] + lines[3]
    assert [c.row for c in result.changes] == [1]
    manifest = json.loads((tmp_path / "new.jsonl.finitune-repair.json").read_text())
    assert manifest["dropped_lines"] == [3]


def test_data_that_do_not_read_back_leave_nothing_behind(tmp_path, monkeypatch):
    data = jsonl(tmp_path / "d.jsonl", ROWS)
    monkeypatch.setattr("finitune.remedies.drop_unsupervised_rows.apply", lambda items, rows: iter(items))
    with pytest.raises(UnreadableInput, match="4 rows read back, 2 were expected"):
        repair("drop-unsupervised-rows", data=data, rows=[1, 3], output=tmp_path / "new.jsonl")
    assert names(tmp_path) == ["d.jsonl"]


def test_a_manifest_is_not_written_over(tmp_path):
    data = jsonl(tmp_path / "d.jsonl", ROWS)
    (tmp_path / "new.jsonl.finitune-repair.json").write_text("of another repair")
    with pytest.raises(UnreadableInput, match="already there"):
        repair("drop-unsupervised-rows", data=data, rows=[1], output=tmp_path / "new.jsonl")
    assert not (tmp_path / "new.jsonl").exists()


def test_a_json_list_stays_a_json_list(tmp_path):
    (tmp_path / "d.json").write_text(json.dumps(ROWS))
    repair("drop-unsupervised-rows", data=tmp_path / "d.json", rows="1,3", output=tmp_path / "new.json")
    assert json.loads((tmp_path / "new.json").read_text()) == [ROWS[0], ROWS[2]]


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"rows": [4]}, "outside of"), ({"data": None}, "--data FILE"), ({"output": "d.jsonl"}, "already there")],
)
def test_wrong_usage_on_data_is_one_line(tmp_path, monkeypatch, given, expected):
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "d.jsonl", ROWS)
    with pytest.raises(UnreadableInput, match=expected):
        repair(**{"name": "drop-unsupervised-rows", "data": "d.jsonl", "rows": [1], "output": "new.jsonl", **given})
    assert names(tmp_path) == ["d.jsonl"]


def test_the_command_line_repairs_and_refuses(tmp_path):
    from finitune.cli.commands.repair import command

    model = broken(tmp_path / "m")
    arguments = [
        "reinit-token-rows",
        "--model",
        str(model),
        "--tokens",
        "6,7",
        "--output",
        str(tmp_path / "new"),
        "--format",
        "json",
    ]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["schema"] == "finitune.repair/1"
    again = CliRunner().invoke(command, arguments)
    assert isinstance(again.exception, UnreadableInput)
