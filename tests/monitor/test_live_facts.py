"""What the header of a recording says of the model that is trained."""

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from finitune.monitor.probes.live_facts import run_facts  # noqa: E402


def adapted(names=("default",), **settings):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    found = peft.get_peft_model(model, peft.LoraConfig(target_modules=["0"], **settings))
    for name in names[1:]:
        found.add_adapter(name, peft.LoraConfig(target_modules=["0"], **settings))
    return found


def adapter_of(model):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return run_facts(model, optimizer, None).adapter


@pytest.mark.parametrize("wrap", [lambda model: model, torch.nn.Sequential], ids=["bare", "wrapped"])
def test_the_adapter_of_a_model_is_known(wrap):
    adapter = adapter_of(wrap(adapted(r=2, lora_alpha=160, use_rslora=True)))
    assert adapter is not None
    assert (adapter.kind, adapter.rank, adapter.alpha, adapter.rank_stabilised) == ("lora", 2, 160, True)


def test_dora_is_told_from_lora():
    adapter = adapter_of(adapted(r=2, use_dora=True))
    assert adapter is not None
    assert adapter.kind == "dora"


def test_stays_quiet_without_an_adapter_and_with_several():
    assert adapter_of(torch.nn.Linear(2, 1)) is None
    assert adapter_of(adapted(["default", "other"], r=2)) is None
