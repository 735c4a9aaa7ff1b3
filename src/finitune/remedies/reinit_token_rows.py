"""Give untrained embedding rows a sensible start: draw them from the distribution of the trained rows.

## What it changes

In a copy of the model directory, the rows of the given tokens in the input embedding; where the output head is
stored separately, the same rows there if they are untrained too. Each new row is a draw from the normal distribution
with the mean and covariance of the trained rows, rescaled to their median length; with `--like` it has the direction
of the row of a related token instead. Where head and embedding are tied and both are stored, both get the same rows.
No other byte of any tensor changes. What was written is listed, row by row, in `finitune-repair.json`.

## When it is safe

Unsafe in the sense that numbers of the model change: what it says about these tokens, nothing else. A row that is
(almost) zero carries no knowledge, so none is lost. Do not name tokens whose rows were trained. The new rows are as
different from each other as trained ones are; they mean nothing yet, and only training gives them a meaning.

## References

John Hewitt, Initializing new word embeddings for pretrained language models (2021), for the draw from mean and
covariance; the bare mean is too short (measured: a gradient of 43 against 1.5 for a trained row). 01-ai/Yi#285,
marin-community/levanter#937, axolotl-ai-cloud/axolotl#1771.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from finitune.facts import NEVER_TRAINED, EmbeddingRows, Model, TokenUse
from finitune.finding import Remedy, Where

safety = "unsafe"
rewrites = "rows"

Rows = npt.NDArray[np.float64]

Blocks = Callable[[], Iterable[tuple[int, npt.NDArray[np.float32]]]]
"""Reads a matrix anew: the index of the first row, and some rows. Never the whole matrix at once."""


def propose(
    where: Where | None = None,
    rows: EmbeddingRows | None = None,
    model: Model | None = None,
    tokens: TokenUse | None = None,
) -> Remedy:
    """One command for the tokens of the finding and every other token of the data whose row is as short."""
    ids = {*((where.tokens if where else None) or ())}
    if rows is not None and (tokens is not None or not ids):
        short = rows.ids[rows.rms <= NEVER_TRAINED * rows.median_rms]
        ids |= {*np.intersect1d(short, rows.ids if tokens is None else tokens.ids[tokens.counts > 0]).tolist()}
    if not ids or model is None or not model.path:
        return Remedy()
    command = ["finitune", "repair", "reinit-token-rows", "--model", model.path]
    command += ["--tokens", ",".join(str(i) for i in sorted(ids)), "--output", _beside(model.path)]
    return Remedy(command=shlex.join(command))


def apply(
    blocks: Blocks, tokens: Sequence[int], seed: int, like: Mapping[int, int] | None = None
) -> Iterator[tuple[int, Rows]]:
    """New rows for `tokens`, in the order given; `like` names a related token. Memory holds a block and the new rows.

    A draw is mean + centred_rows.T @ z / sqrt(n - 1) with z standard normal: its covariance is exactly the sample
    covariance, which is never formed. Raises ValueError when fewer than two rows are trained, or a related one is not.
    """
    trained, length = _trained(blocks, tokens)
    if like:
        yield from _related(blocks, tokens, like, trained, length)
        return
    generator = np.random.default_rng(seed)
    columns = int(next(iter(blocks()))[1].shape[1])
    total: Rows = np.zeros((columns,), np.float64)
    mixed: Rows = np.zeros((len(tokens), columns), np.float64)
    weights: Rows = np.zeros((len(tokens),), np.float64)
    for first, block in blocks():
        own = trained[first : first + len(block)]
        rows: Rows = block[own].astype(np.float64)
        # drawn for every row, so that the numbers do not depend on how the matrix is cut into blocks
        z: Rows = generator.standard_normal((len(block), len(tokens)))[own]
        total += np.sum(rows, axis=0)
        mixed += np.einsum("ni,nj->ij", z, rows, optimize=True)
        weights += np.sum(z, axis=0)
    count = int(trained.sum())
    mean = total / count
    for index, token in enumerate(tokens):
        row: Rows = mean + (mixed[index] - weights[index] * mean) / math.sqrt(count - 1)
        yield token, row * (length / math.sqrt(float(np.dot(row, row))))


def _related(
    blocks: Blocks, tokens: Sequence[int], like: Mapping[int, int], trained: npt.NDArray[np.bool_], length: float
) -> Iterator[tuple[int, Rows]]:
    poor = [one for one in like.values() if not trained[one]]
    if poor:
        raise ValueError(f"row {poor[0]} was never trained, or is to be replaced itself (expected a trained one)")
    wanted = {*like.values()}
    found = {at: block[at - first] for first, block in blocks() for at in wanted & {*range(first, first + len(block))}}
    for token in tokens:
        row: Rows = found[like[token]].astype(np.float64)
        yield token, row * (length / math.sqrt(float(np.dot(row, row))))


def untrained(blocks: Blocks, tokens: Sequence[int]) -> Mapping[int, bool]:
    """For each token whether its row is too short to have been trained."""
    norms = _norms(blocks)
    limit = NEVER_TRAINED * float(np.nanmedian(norms))
    return {token: not norms[token] > limit for token in tokens}


def _trained(blocks: Blocks, tokens: Sequence[int]) -> tuple[npt.NDArray[np.bool_], float]:
    """Which rows to learn from, and their median length."""
    norms = _norms(blocks)
    usable = np.isfinite(norms)
    usable[[token for token in tokens if token < len(norms)]] = False
    if usable.any():
        usable &= norms > NEVER_TRAINED * float(np.median(norms[usable]))
    if int(usable.sum()) < 2:
        raise ValueError("fewer than two trained rows are left to learn from")
    return usable, float(np.median(norms[usable]))


def _norms(blocks: Blocks) -> npt.NDArray[np.float64]:
    wide = (block.astype(np.float64) for _, block in blocks())
    return np.concatenate([np.sqrt(np.einsum("ij,ij->i", rows, rows)) for rows in wide])


def _beside(path: str) -> str:
    return path.rstrip("/") + "-repaired"
