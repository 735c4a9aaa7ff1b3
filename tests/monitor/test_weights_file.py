"""The file of weights holds what a public reader of the format finds in them, however they lie in memory."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from finitune.monitor.weights_file import write_tensors

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_is_what_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    flat = (torch.arange(64) % 7).to(dtype)
    tensors = {
        "whole": flat,
        "part of a flat buffer": flat[20:44].view(4, 6),  # as DeepSpeed and FSDP hold their parameters
        "transposed": flat[:24].view(4, 6).t(),
        "strided": flat[::3],
        "one number": flat[5],
        "empty": flat[:0],
        "expanded": flat[3].expand(5),
    }
    write_tensors(tmp_path / "weights.safetensors", tensors.items())
    read = load_file(tmp_path / "weights.safetensors")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == dtype
        assert torch.equal(read[name], tensor), name


def test_a_part_of_a_large_buffer_costs_its_own_bytes(tmp_path: Path) -> None:
    flat = torch.zeros(1 << 26)
    write_tensors(tmp_path / "weights.safetensors", [(str(i), flat[i : i + 8]) for i in range(1000)])
    assert (tmp_path / "weights.safetensors").stat().st_size < 200_000
