import json
import resource
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.sources import worlds
from tests.sources.worlds import HIDDEN, VOCABULARY, one_line

from finitune.finding import UnreadableInput
from finitune.sources.weights import checkpoint


def test_a_sound_model_is_read_whole(tmp_path):
    found = checkpoint.read(worlds.model(tmp_path / "m"), compute="float16")
    facts = found.facts
    assert not found.not_checked
    assert facts.model.family == "llama"
    assert facts.model.dtype == "bfloat16"
    assert facts.model.vocabulary == VOCABULARY
    assert facts.model.norm_eps == 1e-5
    assert facts.model.tied is False
    assert {t.name for t in facts.weights.tensors} == set(worlds.tensors())
    assert not facts.weights.problems
    assert all(t.nonfinite == t.overflow == 0 for t in facts.weights.tensors)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_rms_of_rows_and_their_median(tmp_path, dtype):
    weights = worlds.tensors(dtype=dtype)
    rows = checkpoint.read(worlds.model(tmp_path / "m", weights)).facts.rows
    wide = weights["model.embed_tokens.weight"].astype(np.float64)
    np.testing.assert_allclose(rows.rms, np.sqrt((wide**2).mean(axis=1)), rtol=1e-6)
    assert rows.median_rms == pytest.approx(np.median(rows.rms))
    assert rows.dtype == dtype
    assert not rows.lost_in_cast.any()


def test_elements_lost_in_the_cast_are_those_that_numpy_turns_to_zero(tmp_path):
    weights = worlds.tensors(dtype="float32")
    rng = np.random.default_rng(1)
    weights["model.embed_tokens.weight"][5] = rng.standard_normal(HIDDEN) * 3e-8
    weights["model.embed_tokens.weight"][6] = 2.0**-25
    weights["model.embed_tokens.weight"][7] = np.nextafter(np.float32(2.0**-25), np.float32(1))
    weights["model.embed_tokens.weight"][8] = 0
    directory = worlds.model(tmp_path / "m", weights)
    lost = checkpoint.read(directory, compute="float16").facts.rows.lost_in_cast
    expected = (weights["model.embed_tokens.weight"].astype(np.float16) == 0).mean(axis=1)
    expected[8] = 0  # nothing to lose
    np.testing.assert_array_equal(lost, expected)
    assert lost[6] == 1
    assert lost[7] == 0
    assert not checkpoint.read(directory, compute="bfloat16").facts.rows.lost_in_cast.any()


def test_a_row_with_a_nan_does_not_spoil_the_median(tmp_path):
    weights = worlds.tensors(dtype="float32")
    weights["model.embed_tokens.weight"][3, 2] = np.nan
    rows = checkpoint.read(worlds.model(tmp_path / "m", weights)).facts.rows
    assert np.isnan(rows.rms[3])
    assert rows.median_rms == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize(
    "name",
    ["transformer.wte.weight", "transformer.word_embeddings.weight", "model.tok_embeddings.weight",
     "gpt_neox.embed_in.weight",
     "llm.model.embed_tokens.weight", "shared.weight", "bert.embeddings.word_embeddings.weight"],
)  # fmt: skip
def test_the_input_embedding_is_found_under_its_many_names(tmp_path, name):
    weights = {
        name: np.ones((VOCABULARY, 4), np.float32),
        "model.vision.position_embedding.weight": np.ones((99, 4), np.float32),
    }
    assert checkpoint.read(worlds.model(tmp_path / "m", weights)).facts.rows.tensor == name


def test_of_two_embeddings_the_one_with_the_vocabulary_of_the_config_is_taken(tmp_path):
    weights = {
        f"{part}.embed_tokens.weight": np.ones((rows, 4), np.float32)
        for part, rows in (("audio", 999), ("text", VOCABULARY))
    }
    assert checkpoint.read(worlds.model(tmp_path / "m", weights)).facts.rows.tensor == "text.embed_tokens.weight"


def test_without_an_input_embedding_that_is_said(tmp_path):
    found = checkpoint.read(worlds.model(tmp_path / "m", {"a.weight": np.ones((3, 3), np.float32)}))
    assert found.facts.rows is None
    assert [entry.input for entry in found.not_checked] == ["embedding rows"]


def test_shards_are_read_through_their_index(tmp_path):
    whole = checkpoint.read(worlds.model(tmp_path / "whole"))
    sharded = worlds.model(tmp_path / "sharded", shards=3)
    (sharded / "stray.safetensors").write_bytes(b"not named in the index")
    found = checkpoint.read(sharded)
    assert not found.facts.weights.problems
    assert {t.name: t.rms for t in found.facts.weights.tensors} == {t.name: t.rms for t in whole.facts.weights.tensors}


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/../../x", "..\\x", "C:\\x", "", "\0"])
def test_an_index_that_points_outside_is_refused(tmp_path, name):
    directory = worlds.model(tmp_path / "m", shards=2)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(UnreadableInput, match="leaves the directory") as caught:
        checkpoint.read(directory)
    one_line(caught.value)


def test_symbolic_links_of_a_cache_are_followed(tmp_path):
    blobs = worlds.model(tmp_path / "blobs", shards=2)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert not checkpoint.read(snapshot).facts.weights.problems


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": [1]}', '{"weight_map": {"a": 3}}', "{}"])
def test_an_index_that_is_not_one_is_refused(tmp_path, index):
    directory = worlds.model(tmp_path / "m", shards=2)
    (directory / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UnreadableInput, match=r"index\.json") as caught:
        checkpoint.read(directory)
    one_line(caught.value)


def test_a_missing_shard_and_a_tensor_that_is_not_in_its_shard_are_problems(tmp_path):
    directory = worlds.model(tmp_path / "m", shards=2)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    index["weight_map"]["ghost.weight"] = "model-00001-of-00002.safetensors"
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "model-00002-of-00002.safetensors").unlink()
    problems = checkpoint.read(directory).facts.weights.problems
    assert len(problems) == 2
    assert "model-00002-of-00002.safetensors: named in" in problems[0]
    assert "ghost.weight: promised" in problems[1]


def test_a_file_cut_anywhere_is_a_problem_of_the_weights_never_an_exception(tmp_path):
    directory = worlds.model(tmp_path / "m", tokenizer=False)
    file = directory / "model.safetensors"
    raw = file.read_bytes()
    for size in [*range(0, 64, 3), 500, len(raw) // 2, len(raw) - 1]:
        file.write_bytes(raw[:size])
        weights = checkpoint.read(directory).facts.weights
        assert len(weights.problems) == 1
        assert weights.problems[0].startswith("model.safetensors: ")
        assert not weights.tensors


@pytest.mark.parametrize("text", ["{", "[1]", "\xff", '"text"', "", "[" * 100_000, '{"vocab_size": "many"}'])
def test_a_config_that_is_not_one_is_unreadable(tmp_path, text):
    directory = worlds.model(tmp_path / "m")
    (directory / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(UnreadableInput, match=r"config\.json") as caught:
        checkpoint.read(directory)
    one_line(caught.value)


def test_no_weights_and_no_directory_are_unreadable(tmp_path):
    with pytest.raises(UnreadableInput, match=r"no weights here \(expected \*\.safetensors\)"):
        checkpoint.read(tmp_path)
    with pytest.raises(UnreadableInput, match="no such file or directory"):
        checkpoint.read(tmp_path / "absent")


def test_settings_of_a_model_that_sees_are_one_level_down(tmp_path):
    directory = worlds.model(tmp_path / "m", vocab_size=None, text_config={"vocab_size": 7, "hidden_size": 3})
    model = checkpoint.read(directory).facts.model
    assert model.vocabulary == 7
    assert model.hidden == HIDDEN


def test_weights_published_twice_are_read_once(tmp_path):
    directory = worlds.model(tmp_path / "m")
    shutil.copy(directory / "model.safetensors", directory / "consolidated.safetensors")
    assert len(checkpoint.read(directory).facts.weights.tensors) == len(worlds.tensors())


def test_memory_does_not_grow_with_the_model(tmp_path):
    big = {f"l.{i}.up_proj.weight": np.full((8192, 4096), 0.5, ml_dtypes.bfloat16) for i in range(4)}
    save_file(big, tmp_path / "model.safetensors")  # 256 MiB
    program = (
        "import resource, sys; from finitune.sources.gather import checkpoint\n"
        "start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "checkpoint.read(sys.argv[1]); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)"
    )
    out = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert resource.RUSAGE_SELF == 0
    assert int(out.stdout) * unit < 64 * 2**20
