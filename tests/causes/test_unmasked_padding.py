"""The example of Ludwig, as it is and cured."""

from pathlib import Path

import pytest

from finitune.preflight import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "ludwig"


def checked(tmp_path, *cured):
    """What check says of the example, with the files that the remedy changes laid over it."""
    pytest.importorskip("tokenizers")
    for file in ("model.yaml", "train.csv", *(f"model/{path.name}" for path in (EXAMPLE / "model").iterdir())):
        source = EXAMPLE / "cured" / file if file in cured else EXAMPLE / file
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(source.read_bytes())
    return check(tmp_path / "model.yaml", model=tmp_path / "model", data=tmp_path / "train.csv", gpu="V100").findings


def test_fires_on_the_example(tmp_path):
    found = {finding.cause: finding.severity for finding in checked(tmp_path)}
    assert (found["unmasked-padding"], found["quant-compute-dtype"]) == ("error", "warning")
    assert "fully-masked-attention-rows" not in found


def test_stays_quiet_on_the_cured_example(tmp_path):
    assert not checked(tmp_path, "model.yaml", "model/tokenizer_config.json")


def test_fires_as_a_warning_where_only_the_dtype_is_cured(tmp_path):
    assert {f.cause: f.severity for f in checked(tmp_path, "model.yaml")} == {"unmasked-padding": "warning"}
