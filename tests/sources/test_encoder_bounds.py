"""Reaches against the largest values that random inputs and the best input really give."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from finitune.naming import tower_of
from finitune.sources.weights.encoder_bounds import reaches
from finitune.sources.weights.safetensors import read_header


def found(tmp_path, **arrays):
    file = tmp_path / "model.safetensors"
    save_file({name.replace("__", "."): array.astype(np.float32) for name, array in arrays.items()}, file)
    return list(reaches(read_header(file)))


@pytest.mark.parametrize("name", ["visual", "vpm", "vision_tower.vision_model"])
def test_behind_a_norm_no_input_gives_more_and_the_best_one_gives_it(tmp_path, name):
    rng = np.random.default_rng(0)
    scale, shift, weight, bias = rng.normal(1, 1, 16), rng.normal(size=16), rng.normal(size=(5, 16)), rng.normal(size=5)
    stem = f"{name.replace('.', '__')}__layers__0"
    (reach,) = found(tmp_path, **{
        f"{stem}__layer_norm2__weight": scale, f"{stem}__layer_norm2__bias": shift,
        f"{stem}__mlp__fc1__weight": weight, f"{stem}__mlp__fc1__bias": bias,
    })  # fmt: skip

    def put_out(x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True))
        return np.abs((x * scale + shift) @ weight.T + bias)

    assert put_out(rng.normal(size=(20000, 16))).max() <= reach.value * (1 + 1e-6)
    best = (weight * scale)[reach.row]
    assert max(put_out(best).max(), put_out(-best).max()) == pytest.approx(reach.value, rel=1e-5)


def test_what_is_no_tower_is_left_out(tmp_path):
    one = np.ones((4, 8))
    assert not found(tmp_path, layers__0__layer_norm2__weight=np.ones(8), layers__0__mlp__fc1__weight=one)


@pytest.mark.parametrize(
    ("name", "tower"),
    [
        ("base_model.model.vpm.encoder.layers.1", "base_model.model.vpm"),
        ("model.vision_tower.x", "model.vision_tower"),
        ("model.visual", "model.visual"),
        ("model.layers.0.mlp", None),
        ("", None),
    ],
)
def test_towers_by_name(name, tower):
    assert tower_of(name) == tower
