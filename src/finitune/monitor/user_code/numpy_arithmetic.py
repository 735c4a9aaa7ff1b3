"""What numpy computes without drawing random numbers and without writing into what it is given, by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

_FUNCTIONS = frozenset({
    "abs", "all", "amax", "amin", "angle", "any", "append", "arange", "argmax", "argmin", "argsort", "array",
    "array_split", "asarray", "ascontiguousarray", "atleast_1d", "atleast_2d", "average", "bincount", "broadcast_to",
    "clip", "column_stack", "concatenate", "convolve", "corrcoef", "count_nonzero", "cov", "cross", "cumprod",
    "cumsum", "diag", "diagonal", "diff", "digitize", "dot", "dstack", "einsum", "expand_dims", "eye", "flip", "full",
    "full_like", "gradient", "histogram", "hstack", "identity", "inner", "interp", "isclose", "kron", "linspace",
    "logspace", "max", "mean", "median", "meshgrid", "min", "moveaxis", "nan_to_num", "nanmax", "nanmean",
    "nanmedian", "nanmin", "nanstd", "nansum", "nonzero", "ones", "ones_like", "outer", "pad", "percentile",
    "polyfit", "polyval", "prod", "ptp", "quantile", "ravel", "real", "imag", "repeat", "reshape", "roll", "round",
    "searchsorted", "sinc", "sort", "split", "squeeze", "stack", "std", "sum", "swapaxes", "take", "take_along_axis",
    "tensordot", "tile", "trace", "transpose", "tril", "triu", "unique", "vander", "var", "vdot", "vstack", "where",
    "zeros", "zeros_like", "cholesky", "det", "eigh", "eigvalsh", "inv", "lstsq", "norm", "pinv", "qr", "slogdet",
    "solve", "svd", "fft", "ifft", "rfft", "irfft", "fftfreq", "rfftfreq",
})  # fmt: skip
_METHODS = frozenset({
    "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "conj", "copy", "cumprod", "cumsum", "diagonal",
    "dot", "flatten", "item", "max", "mean", "min", "nonzero", "prod", "ptp", "ravel", "repeat", "reshape", "round",
    "searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "tolist", "trace", "transpose", "var",
})  # fmt: skip
ATTRIBUTES = ("shape", "dtype", "ndim", "size", "T", "real", "imag", "flat")
_LONGEST = 1 << 22


def _numpy() -> Any:
    """The module, where the program has imported it."""
    return sys.modules.get("numpy")


def is_module(value: ModuleType) -> bool:
    """numpy, or the part of it that computes."""
    np = _numpy()
    return np is not None and any(value is each for each in (np, np.linalg, np.fft))


def is_array(value: Any) -> bool:
    np = _numpy()
    return np is not None and type(value) is np.ndarray and value.dtype.kind in "biufc" and value.size <= _LONGEST


def is_number_type(value: Any) -> bool:
    """`np.float32`, or the `dtype` of an array."""
    np = _numpy()
    return np is not None and (
        (isinstance(value, type) and issubclass(value, np.number)) or isinstance(value, np.dtype)
    )


def computes(owner: Any, name: str) -> bool:
    """Whether this is a function of numpy, or a method of an array, that computes and nothing more."""
    np = _numpy()
    if np is None:
        return False
    if is_array(owner) or isinstance(owner, np.number):
        return name in _METHODS
    if not isinstance(owner, ModuleType) or not is_module(owner):
        return False
    found = getattr(owner, name, None)
    return name in _FUNCTIONS or isinstance(found, np.ufunc) or is_number_type(found)


def writes(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a call of numpy writes into what it is given: a ufunc's further arguments are where its results go."""
    np = _numpy()
    return (np is not None and isinstance(function, np.ufunc) and len(args) > function.nin) or named.get(
        "copy"
    ) is False


def is_own(value: Any) -> bool:
    """An array that shares its memory with no other."""
    return is_array(value) and value.base is None


def is_bad(value: Any) -> bool:
    """NaN or infinite, or an array that holds something that is."""
    np = _numpy()
    floats = isinstance(value, float) or (np is not None and (isinstance(value, np.number) or is_array(value)))
    return bool(floats and np is not None and not np.isfinite(value).all())
