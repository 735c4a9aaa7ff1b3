"""A bad input is followed into the data set, or the collate_fn, of the DataLoader that it came from."""

from __future__ import annotations

import gc
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from finitune.finding import Origin
from finitune.monitor.probes import fetches
from finitune.monitor.statements.data_sets import made_by_data_set

BAD = 37
RAW = torch.rand(64, 6, generator=torch.Generator().manual_seed(0)) + 0.1
RAW[BAD, 2] = -0.5
HEALTHY = RAW.abs()
KNOWN = Origin(module=None, op="input", phase="input", dtype="float32", rows=[1], values="1 nan", tensor="input 0")


@pytest.fixture(autouse=True)
def remembered(monkeypatch):
    original = fetches.ITERATOR._next_index
    monkeypatch.setattr(fetches.ITERATOR, "_next_index", fetches.remembering(original))


class Of(Dataset[Any]):
    def __init__(self, raw: torch.Tensor = RAW) -> None:
        self.raw = raw
        self.numbers = raw.numpy()

    def __len__(self) -> int:
        return len(self.raw)


class OfTorch(Of):
    def __getitem__(self, index):
        row = self.raw[index]
        return {"x": torch.log(row), "y": row.sum()}


class OfNumpy(Of):
    def __getitem__(self, index):
        row = self.numbers[index]
        return torch.tensor(self.scaled(row), dtype=torch.float32), float(row.sum())

    def scaled(self, row):
        spread = np.std(row)
        return np.log(row) / spread


class OfNumbers(Of):
    def __getitem__(self, index):
        first = self.numbers[index, 2] + np.float32(0.5)
        return torch.tensor([1.0, self.numbers[index, 0] / first])


class PutInOrder(Of):
    def __getitem__(self, index):
        z = torch.nan_to_num(torch.log(self.raw[index] - 0.3), nan=0.0, neginf=0.0)
        if index == BAD:
            z = z / torch.zeros(())
        return z


class MadeWhole(Dataset[Any]):
    def __init__(self, raw: torch.Tensor, shift: float = 0.0) -> None:
        self.x = torch.sqrt(raw + shift)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index]


class Seeded(Dataset[Any]):
    def __init__(self, count: int, seed: int = 3) -> None:
        rng = np.random.default_rng(seed)
        spread = rng.uniform(0.5, 2.0, (count, 6))
        spread[BAD, 2] = 0.0
        self.x = rng.normal(size=(count, 6)) * 0.0 / spread

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return torch.from_numpy(self.x[index])


def logs(samples):
    rows = torch.stack(samples)
    return torch.log(rows), rows.sum(1)


def logs_of(samples, shift):
    rows = torch.stack(samples)
    return torch.log(rows + shift), rows.sum(1)


class Votes:
    """An object that collates, as trainers are given, of samples with words in them."""

    def __init__(self):
        self.words = {"late": 0, "fare": 1}

    def __call__(self, samples):
        ids = torch.zeros(len(samples), 3)
        for row, sample in enumerate(samples):
            ids[row, :2] = torch.tensor([self.words[str(word)] for word in sample["words"]])
        votes = torch.stack([sample["votes"] for sample in samples])
        return ids, votes / votes.sum(1, keepdim=True)


VOTED = [{"words": np.array(["late", "fare"]), "votes": torch.ones(4) * (n != BAD)} for n in range(64)]


def is_bad(batch: Any) -> bool:
    leaves = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
    return not all(leaf.isfinite().all() for leaf in leaves)


def at_bad_batch(loader: Any) -> Origin:
    for batch in loader:
        if is_bad(batch):
            return made_by_data_set(KNOWN)
    raise AssertionError("no batch is bad")


@pytest.mark.parametrize(
    ("data_set", "collate", "op", "line"),
    [
        (OfTorch(), None, "aten.log", 'return {"x": torch.log(row), "y": row.sum()}'),
        (OfNumpy(), None, "aten.log", "return np.log(row) / spread"),
        (OfNumbers(), None, "aten.div", "return torch.tensor([1.0, self.numbers[index, 0] / first])"),
        (PutInOrder(), None, "aten.div", "z = z / torch.zeros(())"),
        (Subset(OfNumpy(), range(10, 60)), None, "aten.log", "return np.log(row) / spread"),
        (list(RAW), logs, "aten.log", "return torch.log(rows), rows.sum(1)"),
        (list(RAW), partial(logs_of, shift=0.0), "aten.log", "return torch.log(rows + shift), rows.sum(1)"),
        (VOTED, Votes(), "aten.div", "return ids, votes / votes.sum(1, keepdim=True)"),
    ],
    ids=["torch", "numpy", "numbers", "put in order", "a part", "collate", "partial", "object that collates"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_statement_and_the_sample_are_named(data_set, collate, op, line, workers):
    loader = DataLoader(data_set, batch_size=4, collate_fn=collate, shuffle=True, num_workers=workers)
    origin = at_bad_batch(loader)
    assert (origin.phase, origin.op) == ("input", op)
    assert origin.line.endswith(line)
    assert f"sample {BAD} of " in origin.values
    assert (origin.tensor, origin.rows) == (KNOWN.tensor, KNOWN.rows)


def test_what_holds_the_samples_was_made_bad_before():
    roots = torch.sqrt(RAW)
    origin = at_bad_batch(DataLoader(TensorDataset(roots), batch_size=4))
    assert origin.op == "aten.sqrt"
    assert origin.line.endswith("roots = torch.sqrt(RAW)")
    assert origin.values == f"1 nan, sample {BAD} of TensorDataset"


def test_what_holds_the_samples_was_made_bad_in_the_data_set():
    made = MadeWhole(RAW, shift=0.01)
    origin = at_bad_batch(DataLoader(made, batch_size=4))
    assert origin.op == "aten.sqrt"
    assert origin.line.endswith("in __init__: self.x = torch.sqrt(raw + shift)")


def test_numbers_from_a_seed_come_again():
    made = Seeded(64)
    origin = at_bad_batch(DataLoader(made, batch_size=4))
    assert origin.op == "aten.div"
    assert origin.line.endswith("self.x = rng.normal(size=(count, 6)) * 0.0 / spread")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_samples_that_lie_there_bad_are_numbered(value):
    raw = HEALTHY.clone()
    raw[BAD, 2] = value
    origin = at_bad_batch(DataLoader(TensorDataset(raw), batch_size=4, shuffle=True))
    assert (origin.op, origin.line) == ("input", None)
    assert origin.values == f"1 nan, sample {BAD} of TensorDataset"


@pytest.mark.parametrize("data_set", [OfTorch(HEALTHY), OfNumpy(HEALTHY), TensorDataset(HEALTHY)])
def test_stays_quiet_where_the_samples_are_finite(data_set):
    for _ in DataLoader(data_set, batch_size=4):
        assert made_by_data_set(KNOWN) is KNOWN


def test_nothing_of_the_users_runs_and_nothing_is_drawn():
    class Drawn(Of):
        reads = 0

        def __getitem__(self, index):
            Drawn.reads += 1
            return torch.log(self.raw[index]) + torch.randn(6) + np.random.rand()  # noqa: NPY002

    loader = iter(DataLoader(Drawn(), batch_size=64))
    next(loader)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    made_by_data_set(KNOWN)
    assert Drawn.reads == 64
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def test_a_data_set_is_not_written_to():
    class Written(Of):
        def __getitem__(self, index):
            row = torch.from_numpy(self.numbers[index])
            row.mul_(2)
            self.numbers[index] = 0.0
            return torch.log(row)

    raw = RAW.clone()
    at_end = iter(DataLoader(Written(raw), batch_size=64))
    next(at_end)
    before = raw.clone()
    made_by_data_set(KNOWN)
    assert torch.equal(raw, before)


def test_data_without_indices_and_loaders_that_are_gone_are_no_fetches():
    class Stream(IterableDataset[Any]):
        def __iter__(self):
            return iter(RAW)

    for _ in DataLoader(Stream(), batch_size=4):
        assert list(fetches.fetches()) == []
    loader = DataLoader(TensorDataset(RAW), batch_size=4)
    next(walk := iter(loader))
    assert [fetch.indices for fetch in fetches.fetches()] == [[0, 1, 2, 3]]
    del walk
    gc.collect()
    assert list(fetches.fetches()) == []
