"""A model directory -> Model, Weights and the rows of its input embedding.

safetensors files are streamed: memory stays small whatever the model, and a truncated or damaged file is a problem
of `Weights`, because that is an answer. A configuration that is not JSON, or a path that is not there, is
unreadable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, cast

from finitune.facts import Activations, Facts, Ints, Model, Weights
from finitune.finding import NotChecked, UnreadableInput
from finitune.sources.result import Reading, Track, untracked
from finitune.sources.text import flag, json_object_of, real, section, short, whole, word
from finitune.sources.weights import first_token, torch_checkpoint
from finitune.sources.weights.embedding_rows import MAX_ROWS, MAX_WIDTH, embedding_rows, too_large
from finitune.sources.weights.encoder_bounds import reaches
from finitune.sources.weights.safetensors import TORCH_NAMES, Tensor, read_header
from finitune.sources.weights.scan import scan

INDEX = "model.safetensors.index.json"

INPUT_EMBEDDINGS = (
    "embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight", "embed_in.weight",
    "token_embedding.weight", "shared.weight",
)  # fmt: skip
"""How architectures name the matrix that token ids index, the commonest first."""

OUTPUT_HEADS = ("lm_head.weight", "embed_out.weight", "output_layer.weight", "output.weight")


def read(path: str | Path, *, compute: str | None = None, track: Track = untracked) -> Reading:
    """Facts about the model at `path`: a directory, or one safetensors file.

    `compute` is the dtype of the run; casts and overflow are judged by it, and not at all when it is None.
    Raises UnreadableInput when there is no model to read.
    """
    path = Path(path)
    if not path.exists():
        raise UnreadableInput(f"{path}: no such file or directory (expected a model directory)")
    directory = path if path.is_dir() else path.parent
    config = json_object_of(directory / "config.json") if (directory / "config.json").exists() else {}
    files, problems = weight_files(path)
    if not files and not problems:
        files = torch_checkpoint.files(path)
        why = torch_checkpoint.why_not_opened()
        if files and why:
            why = f"{path}: the weights are PyTorch .bin files, which are pickles, and {why}; or convert to safetensors"
            return Reading(
                facts=Facts(model=_model(path, config, [])), not_checked=[NotChecked(input="model", why=why)]
            )
        if not files:
            raise UnreadableInput(f"{path}: no weights here (expected *.safetensors)")
    tensors, damaged = headers(files)
    problems = [*problems, *damaged, *_unmet_promises(path, tensors)]
    model = _model(path, config, tensors)
    found = Facts(
        model=model,
        weights=Weights(
            tensors=scan(tensors, compute=compute, track=track),
            problems=problems,
            reaches=list(reaches(tensors)) if compute == "float16" else (),
            source=str(path),
        ),
    )
    embedding = input_embedding(tensors, vocabulary=model.vocabulary)
    if embedding is None:
        why = f"{path}: no tensor here looks like the input embedding (expected a name such as {INPUT_EMBEDDINGS[0]})"
        return Reading(facts=found, not_checked=[NotChecked(input="embedding rows", why=why)])
    head = output_head(tensors, vocabulary=model.vocabulary)
    if large := next((one for one in (embedding, head) if one is not None and too_large(one)), None):
        expected = f"(expected at most {MAX_ROWS} rows of {MAX_WIDTH} bytes)"
        why = f"{path}: {large.name} has the shape {list(large.shape)} {expected}"
        return Reading(facts=found, not_checked=[NotChecked(input="embedding rows", why=why)])
    rows, head_rows = (tensor and embedding_rows(tensor, compute=compute, track=track) for tensor in (embedding, head))
    return Reading(facts=Facts(rows=rows, head_rows=head_rows).over(found))


def activations(path: str | Path, first: Ints, pad: int | None) -> Activations | None:
    """What these tokens reach alone in the model at `path`; None where its layout is not that of Llama."""
    path = Path(path)
    file = (path if path.is_dir() else path.parent) / "config.json"
    if not file.exists():
        return None
    config = json_object_of(file)
    tensors, _ = headers(weight_files(path)[0])
    embedding = input_embedding(tensors, vocabulary=_first(whole, config, str(file), "vocab_size"))
    if embedding is None or too_large(embedding):
        return None
    return first_token.read(tensors, config, str(file), embedding, first, pad)


def weight_files(path: Path) -> tuple[list[Path], list[str]]:
    """The safetensors files of a model, and one line for each that the index names and that is missing.

    Raises UnreadableInput for an index that is not one, or that points outside the directory.
    """
    if path.is_file():
        return ([] if path.suffix == ".bin" else [path]), []
    if (path / INDEX).exists():
        named = {directory_file(path, name, path / INDEX) for name in _weight_map(path / INDEX).values()}
        missing = sorted(file for file in named if not file.exists())
        return sorted(named - set(missing)), [f"{file.name}: named in {INDEX}, but not there" for file in missing]
    files = sorted(path.glob("*.safetensors"))
    # some publishers add the same weights a second time in their own layout
    own = [file for file in files if not file.name.startswith("consolidated")]
    return own or files, []


def headers(files: Sequence[Path]) -> tuple[list[Tensor], list[str]]:
    """Every tensor of the files, and one line for each file whose header cannot be trusted."""
    tensors: list[Tensor] = []
    problems: list[str] = []
    for file in files:
        found = _header(file)
        if isinstance(found, str):
            problems.append(found)
        else:
            tensors += found
    return tensors, problems


def _header(file: Path) -> list[Tensor] | str:
    try:
        return torch_checkpoint.read_header(file) if file.suffix == ".bin" else read_header(file)
    except UnreadableInput as error:
        return str(error).replace(str(file), file.name, 1)


def directory_file(directory: Path, name: str, index: Path) -> Path:
    """`name` inside `directory`; judged by its text, because caches of models are full of symbolic links."""
    parts = [*PurePosixPath(name).parts, *PureWindowsPath(name).parts]
    absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive or PureWindowsPath(name).root
    if absolute or ".." in parts or not parts or "\0" in name:
        raise UnreadableInput(f"{index}: weight_map: {short(repr(name))} leaves the directory (expected a file in it)")
    return directory / name


def input_embedding(tensors: Sequence[Tensor], *, vocabulary: int | None) -> Tensor | None:
    """The matrix that token ids index; of several with the same name the one with `vocabulary` rows, or the largest."""
    return _named(tensors, INPUT_EMBEDDINGS, vocabulary)


def output_head(tensors: Sequence[Tensor], *, vocabulary: int | None) -> Tensor | None:
    """The matrix that gives one logit per row; None when it is tied and so not stored."""
    return _named(tensors, OUTPUT_HEADS, vocabulary)


def _named(tensors: Sequence[Tensor], endings: Sequence[str], vocabulary: int | None) -> Tensor | None:
    matrices = [t for t in tensors if len(t.shape) == 2 and t.dtype in TORCH_NAMES and t.elements]
    for ending in endings:
        fits = [t for t in matrices if t.name == ending or t.name.endswith("." + ending)]
        if fits:
            return max(fits, key=lambda t: (t.shape[0] == vocabulary, t.shape[0]))
    return None


def _weight_map(index: Path) -> Mapping[str, str]:
    weight_map = json_object_of(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(v, str) for v in cast(dict[Any, Any], weight_map).values()
    ):
        raise UnreadableInput(f"{index}: weight_map: expected tensor names with file names")
    return cast(dict[str, str], weight_map)


def _unmet_promises(path: Path, tensors: Sequence[Tensor]) -> list[str]:
    """Tensors that the index puts into a file which is intact but does not hold them."""
    if not path.is_dir() or not (path / INDEX).exists():
        return []
    held: dict[Path, set[str]] = {}
    for tensor in tensors:
        held.setdefault(tensor.file, set()).add(tensor.name)
    absent = [
        f"{file}: {short(name)}: promised by {INDEX}, but not in the file"
        for name, file in _weight_map(path / INDEX).items()
        if path / file in held and name not in held[path / file]
    ]
    return absent[:10] + ([f"{len(absent) - 10} more tensors are promised but absent"] if len(absent) > 10 else [])


def _model(path: Path, config: Mapping[str, Any], tensors: Sequence[Tensor]) -> Model:
    # models that see or hear keep the settings of their language model one level down
    parts = [section(config, key) for key in ("text_config", "llm_config", "language_config")]
    inner = next((part for part in parts if part), section(config, "text_config"))
    merged = {**inner, **{k: v for k, v in config.items() if v is not None}}
    file = str(path / "config.json")
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.dtype in TORCH_NAMES:
            sizes[TORCH_NAMES[tensor.dtype]] += tensor.elements
    declared = word(merged, "dtype") or word(merged, "torch_dtype")
    return Model(
        family=word(config, "model_type"),
        path=str(path),
        vocabulary=_first(whole, merged, file, "vocab_size"),
        hidden=_first(whole, merged, file, "hidden_size", "n_embd", "d_model"),
        layers=_first(whole, merged, file, "num_hidden_layers", "n_layer", "num_layers"),
        norm_eps=_first(real, merged, file, "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
        rope_theta=_first(real, {**section(merged, "rope_parameters"), **merged}, file, "rope_theta"),
        max_positions=_first(whole, merged, file, "max_position_embeddings", "n_positions"),
        tied=_first(flag, merged, file, "tie_word_embeddings"),
        dtype=sizes.most_common(1)[0][0] if sizes else declared,
        experts=_first(whole, merged, file, "num_local_experts", "num_experts", "n_routed_experts"),
        experts_per_token=_first(whole, merged, file, "num_experts_per_tok", "num_experts_per_token", "moe_top_k"),
        renormalised=_first(flag, merged, file, "norm_topk_prob"),
        total=sum(tensor.elements for tensor in tensors) or None,
    )


def _first(read_as: Any, data: Mapping[str, Any], file: str, *keys: str) -> Any:
    return next((value for key in keys if (value := read_as(data, key, file)) is not None), None)
