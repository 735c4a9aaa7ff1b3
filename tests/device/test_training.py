"""What trainings use around the step works on the device, and where it matters it is counted as on CUDA."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
import torch.nn.functional as F
from tests.device.counting import BLOCKING
from torch import nn
from torch.utils.checkpoint import checkpoint


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).to("counting")


def batch():
    return torch.randn(5, 4, device="counting"), torch.tensor([0, 1, 2, 0, 1]).to("counting")


def test_parameters_and_gradients_are_plain_tensors(device):
    model = net()
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    weight = model[0].weight
    assert type(weight) is nn.Parameter
    assert type(weight.grad) is torch.Tensor
    assert weight.device == weight.grad.device == torch.device("counting:0")
    assert weight.is_counting
    assert torch.get_device_module(weight.device) is torch.counting
    assert torch.accelerator.current_accelerator() == torch.device("counting")


def test_backward_runs_in_a_thread_of_the_device(device):
    model = net()
    threads = []
    model[0].weight.register_hook(lambda gradient: threads.append(threading.get_ident()))
    model(batch()[0]).sum().backward()
    assert threads
    assert threading.get_ident() not in threads


def test_optimizers_are_foreach_by_default_and_scale_aware_where_fused(device):
    with device.record() as trace:
        model = net()
        model(batch()[0]).sum().backward()
        torch.optim.AdamW(model.parameters()).step()
    assert any("_foreach_" in what for what in trace.whats("kernel"))
    assert torch.optim.AdamW(model.parameters(), fused=True)._step_supports_amp_scaling


@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
def test_a_scaler_skips_on_overflow(device, fused):
    model = net()
    before = copy.deepcopy(list(model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("counting", init_scale=2.0**20)
    x, y = batch()
    scaler.scale(F.cross_entropy(model(x * 1e38), y)).backward()
    with device.record() as trace:
        scaler.step(optimizer)
        scaler.update()
    assert trace.count(BLOCKING) == (0 if fused else 1)  # the fused kernel takes found_inf on the device
    assert all(map(torch.equal, model.parameters(), before))
    assert scaler.get_scale() == 2.0**19


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_products_and_keeps_losses_in_float32(device, dtype):
    model = net()
    x, y = batch()
    with torch.autocast("counting", dtype=dtype):
        output = model(x)
        loss = F.cross_entropy(output, y)
        assert output.dtype == dtype
        assert (loss.dtype, output.float().sum().dtype, output.softmax(-1).dtype) == (torch.float32,) * 3
        with torch.autocast("counting", enabled=False):
            assert model(x).dtype == torch.float32
    loss.backward()
    assert model[0].weight.grad.dtype == torch.float32


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_repeats_the_forward_with_its_random_numbers(device, reentrant):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).to("counting")
    x = torch.randn(5, 4, device="counting").requires_grad_()
    torch.manual_seed(1)
    model(x).square().sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.manual_seed(1)
    checkpoint(model, x, use_reentrant=reentrant).square().sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), plain, strict=True))


def test_state_dict_deepcopy_and_files(device, tmp_path):
    model = net()
    weight = model[0].weight
    assert model.state_dict()["0.weight"].data_ptr() == weight.data_ptr()
    clone = copy.deepcopy(model)
    assert clone[0].weight.device.type == "counting"
    assert torch.equal(clone[0].weight, weight)
    assert clone[0].weight.data_ptr() != weight.data_ptr()

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for where in (None, "counting", "cpu"):
        file.seek(0)
        loaded = torch.load(file, map_location=where)["0.weight"]
        assert loaded.device.type == (where or "counting")
        assert torch.equal(loaded.cpu(), weight.cpu())
    clone.load_state_dict(model.state_dict())


def test_safetensors(device, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = net()
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = safetensors.load_file(tmp_path / "model.safetensors")
    assert torch.equal(loaded["0.weight"], model[0].weight.cpu())
    assert safetensors.load_model(net(), tmp_path / "model.safetensors") == (set(), [])


def test_saving_waits_for_each_tensor(device):
    model = net()
    with device.record() as trace:
        torch.save(model.state_dict(), io.BytesIO())
    assert trace.count(BLOCKING) == len(model.state_dict())


def test_the_default_device(device):
    with torch.device("counting"):
        assert torch.zeros(2).device.type == "counting"
        assert nn.Linear(2, 2).weight.device.type == "counting"
    assert torch.zeros(2).device.type == "cpu"


def test_random_states_are_saved_and_restored(device):
    module = torch.get_device_module("counting")
    state = module.get_rng_state()
    first = torch.randn(3, device="counting")
    module.set_rng_state(state)
    assert torch.equal(torch.randn(3, device="counting"), first)


def test_no_grad_and_evaluation(device):
    model = net()
    with torch.no_grad():
        y = model(batch()[0])
    assert y.grad_fn is None
    with torch.inference_mode():
        assert model(batch()[0]).is_inference()
