"""Small files that stand for far more than any memory: refused or read within 1 GiB, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.sources import worlds

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads how large a process is")

SCRIPT = """
import resource, sys
from finitune.cli.main import main
import numpy, tokenizers, finitune.preflight, finitune.reports.terminal
for name in ("pyarrow.parquet", "torch._subclasses.fake_tensor") if sys.argv[1] == "1" else ():
    __import__(name)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))
sys.exit(main(["check", *sys.argv[2:]]))
"""


def check(*words: object, heavy: bool = False) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "1" if heavy else "0", *map(str, words)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "MemoryError" not in done.stderr
    return done


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stdout
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("finitune:")]
    for word in words:
        assert word in line


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return worlds.model(tmp_path / "model")


@pytest.mark.parametrize("layers", [10**9, 10**300])
def test_any_number_of_layers(model: Path, layers: int) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers, "vocab_size": layers}))
    done = check("--model", model)
    assert done.returncode == 1, done.stderr
    assert "they would start from random numbers" in " ".join(done.stdout.split())


def safetensors(path: Path, header: dict, size: int) -> None:
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + size)


@pytest.mark.parametrize("shape", [[1, 3 * 2**28], [10**9, 1]])
def test_an_embedding_with_too_many_or_too_wide_rows(model: Path, shape: list[int]) -> None:
    size = shape[0] * shape[1] * 2
    entry = {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}
    safetensors(model / "model.safetensors", {"model.embed_tokens.weight": entry}, size)
    done = check("--model", model)
    assert "expected at most 4194304 rows" in " ".join(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dimensions", "tensors", "lists"])
def test_odd_headers(model: Path, kind: str) -> None:
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    entries = {
        "dimensions": lambda: {"x": {**one, "shape": [1] * 10**5}},
        "tensors": lambda: {f"t{n}": empty for n in range(10**6)},
        "lists": lambda: {"x": {**one, "shape": [[]] * 10**7}},
    }[kind]()
    safetensors(model / "model.safetensors", entries, 4)
    done = check("--model", model)
    assert done.returncode in (1, 2)
    assert ("dimensions" if kind == "dimensions" else "header") in done.stdout + done.stderr


@pytest.mark.slow
def test_a_compressed_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "m").mkdir()
    with zipfile.ZipFile(tmp_path / "m" / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/version", "3")
        with archive.open("archive/data.pkl", "w", force_zip64=True) as file:
            for _ in range(300):
                file.write(bytes(2**20))
    done = check("--model", tmp_path / "m", heavy=True)
    assert done.returncode in (1, 2)
    assert "is compressed" in " ".join((done.stdout + done.stderr).split())


@pytest.mark.slow
def test_a_dictionary_of_parquet(model: Path, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    indices = arrow.array(np.zeros(2000, np.int32))
    column = arrow.DictionaryArray.from_arrays(indices, arrow.array(["a" * 2**20]))
    parquet.write_table(
        arrow.table({"text": ["it is"] * 2000, "note": column}), tmp_path / "data.parquet", compression="zstd"
    )
    assert (tmp_path / "data.parquet").stat().st_size < 2**16
    done = check("--model", model, "--data", tmp_path / "data.parquet", heavy=True)
    one_line(done, "data.parquet", "so small a file")


@pytest.mark.parametrize("kind", ["text", "lists"])
def test_a_row_of_60_megabytes(model: Path, tmp_path: Path, kind: str) -> None:
    row = {"text": "it is " * 10**7} if kind == "text" else {"text": "it is", "x": [[]] * 3 * 10**6}
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    one_line(check("--model", model, "--data", tmp_path / "data.jsonl"), "line 1")


@pytest.mark.slow
def test_many_long_rows(model: Path, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text((json.dumps({"text": "it is " * 10**6}) + "\n") * 3)
    assert check("--model", model, "--data", tmp_path / "data.jsonl").returncode in (0, 1)


def test_a_normalizer_that_multiplies(model: Path, tmp_path: Path) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    times = {"type": "Replace", "pattern": {"String": "i"}, "content": "i" * 10}
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [times] * 9}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "data.jsonl").write_text('{"text": "it is"}\n')
    one_line(check("--model", model, "--data", tmp_path / "data.jsonl"), "tokenizer.json", "normalizer")


def test_a_regular_expression_that_gives_up(model: Path, tmp_path: Path) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "(a+a+)+b"}, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = split
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "data.jsonl").write_text(json.dumps({"text": "a" * 200}) + "\n")
    one_line(check("--model", model, "--data", tmp_path / "data.jsonl"), "tokenizer.json")


@pytest.mark.slow
def test_a_template_that_makes_links(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for m in messages %}{{ m['content'] | urlize }}{% endfor %}"
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    row = {"messages": [{"role": "user", "content": "www.a.com " * 10**5}]}
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    assert check("--model", model, "--data", tmp_path / "data.jsonl").returncode in (0, 1, 2)


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "0b" + "1" * 20_000, "9" * 5000])
def test_yaml_with_numbers_of_thousands_of_digits(tmp_path: Path, number: str) -> None:
    (tmp_path / "train.yaml").write_text(f"fp16: true\nlearning_rate: {number}\n")
    one_line(check(tmp_path / "train.yaml"), "train.yaml: line 2")
