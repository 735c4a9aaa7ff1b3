from finitune.finding import Origin, Where
from finitune.remedies.float32_modules import propose


def test_fires_with_the_module_of_the_origin_or_of_the_tensor():
    origin = Origin(module="model.layers.7.mlp", op="aten.mul", phase="forward", dtype="float16")
    assert propose(origin=origin).patch == {"float32_modules": ["model.layers.7.mlp"]}
    assert propose(origin=origin).text.startswith("in a program: model.model.layers[7].mlp.float()")
    assert propose(where=Where(tensor="model.layers.7.wo.weight")).patch == {"float32_modules": ["model.layers.7.wo"]}


def test_stays_quiet_about_modules_when_none_is_known():
    assert propose().patch is None
    assert propose(where=Where(tensor="weight")).patch is None
