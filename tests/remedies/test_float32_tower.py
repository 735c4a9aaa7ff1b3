from finitune.finding import Origin, Where
from finitune.remedies.float32_tower import propose


def test_fires_for_an_origin_in_the_tower_with_its_own_name():
    origin = Origin(module="base_model.model.vpm.encoder.layers.1.mlp.fc1", op="aten.addmm", phase="forward", dtype="")
    assert propose(origin).patch == {"float32_modules": ["vpm"]}
    assert propose(where=Where(tensor="visual.blocks.3.mlp.fc1.weight")).patch == {"float32_modules": ["visual"]}


def test_stays_quiet_for_the_language_model():
    assert propose(Origin(module="model.layers.0.mlp", op="aten.mm", phase="forward", dtype="float16")) is None
    assert propose() is None
