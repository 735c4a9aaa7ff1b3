"""Which samples of which data set the DataLoaders of this process have fetched last: indices, no data."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import Subset, TensorDataset
from torch.utils.data import dataloader as torch_dataloader

ITERATOR = torch_dataloader._BaseDataLoaderIter
AHEAD = 4
"""Batches that a loop may have asked for before it trains on them, beside those of the loader's workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Samples that were asked for together: `indices` of `data_set`, of which `collate` makes the batch."""

    data_set: Any
    indices: list[Any]
    collate: Callable[[list[Any]], Any] | None
    """None where the loader makes no batches: the one sample is what it gives."""


_asked: WeakKeyDictionary[Any, deque[Any]] = WeakKeyDictionary()


def remembering(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The method of a loader's iterator that asks its sampler, keeping the last answers."""

    @functools.wraps(original)
    def next_index(self: Any) -> Any:
        index = original(self)
        last = _asked.get(self)
        if last is None:
            workers = getattr(self, "_num_workers", 0) * (getattr(self, "_prefetch_factor", None) or 0)
            last = _asked[self] = deque(maxlen=AHEAD + workers)
        last.append(index)
        return index

    return next_index


def fetches() -> Iterator[Fetch]:
    """The last of every loader that is gone through now, the oldest first; none of a data set without indices."""
    for iterator, asked in list(_asked.items()):
        if getattr(iterator, "_dataset_kind", None) != torch_dataloader._DatasetKind.Map:
            continue
        for index in list(asked):
            data_set, indices = iterator._dataset, list(index) if iterator._auto_collation else [index]
            while type(data_set) is Subset:
                data_set, indices = data_set.dataset, [data_set.indices[n] for n in indices]
            collate = iterator._collate_fn if iterator._auto_collation else None
            yield Fetch(data_set=data_set, indices=indices, collate=collate)


def is_read(data_set: Any) -> bool:
    """Whether a sample is read without running anything of the user's: a list, tensors, a table of `datasets` without
    a transform.
    """
    kind = type(data_set)
    is_table = f"{kind.__module__}.{kind.__name__}" == "datasets.arrow_dataset.Dataset"
    return kind in (list, tuple, TensorDataset) or (is_table and getattr(data_set, "_format_type", "") != "custom")
