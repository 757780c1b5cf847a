"""Makes a model's feed from the command line: files, images and random values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vkml.cli.guard import UsageError
from vkml.cli.images import AS_IS, Preparation, read_image
from vkml.cli.sources import ARRAY_STARTS, KNOWN_ENDINGS, STANDARD_INPUT, TABLE_ENDINGS, Source, source
from vkml.cpu.memory import amount, free_memory
from vkml.dataclasses import dataclass
from vkml.errors import InvalidArgument, InvalidProtobuf
from vkml.ir import dtypes
from vkml.ir.dtypes import DType
from vkml.ir.wording import counted, shortened

if TYPE_CHECKING:
    from vkml.cli.tables import Column

Array = np.ndarray[Any, Any]
_UNNAMED = "arr_0"
"""What `numpy.savez` calls an array that it is given without a name."""


class InputInfo(Protocol):
    """What a session says of one input, as onnxruntime's ``NodeArg``."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Sequence[int | str | None]: ...
    @property
    def type(self) -> str: ...


@dataclass(frozen=True)
class FeedRequest:
    """What the command line says of the inputs."""

    given: tuple[str, ...] = ()
    """``NAME=FILE`` or ``FILE``, in the order given; ``-`` for the standard input."""
    dimensions: tuple[str, ...] = ()
    """``NAME=N`` for symbolic dimensions."""
    fill_randomly: bool = False
    seed: int = 0
    preparation: Preparation = AS_IS
    """Of pictures."""


def element_type(info: InputInfo) -> DType:
    """The element type behind ``tensor(float)``."""
    inner = info.type.removeprefix("tensor(").removesuffix(")")
    found = next((each for each in dtypes.ALL if each.name == inner), None)
    if found is None:
        raise InvalidArgument(f"input {info.name!r} is a {info.type}; the command line gives tensors only")
    return found


def parse_dimensions(words: Sequence[str]) -> dict[str, int]:
    """``["batch=4"]`` → ``{"batch": 4}``."""
    found: dict[str, int] = {}
    for word in words:
        name, equals, size = word.partition("=")
        if not equals or not name or not (size.isascii() and size.isdecimal()):
            raise UsageError(
                f"--dim {shortened(word)}: expected NAME=N with a whole number N, as in --dim batch=4"
            )
        if len(size.lstrip("0")) > 18:  # of 64 bits, without making a number of a million digits
            raise UsageError(f"--dim {shortened(word)}: no tensor is that large")
        if name in found:
            raise UsageError(f"--dim {shortened(word)}: {name} is given twice")
        found[name] = int(size)
    return found


def make_feed(
    infos: Sequence[InputInfo], request: FeedRequest, columns: Sequence[Column] | None = None
) -> dict[str, Array]:
    """Reads and makes all inputs.

    Args:
        infos: The model's inputs.
        request: What the command line says.
        columns: What those of a table are, where the model says that it takes one.

    Returns:
        An array for each input.

    Raises:
        UsageError: A name the model does not have, an input neither given nor filled, a bad option.
        InvalidArgument: A file that does not hold such a value.
    """
    by_name = {info.name: info for info in infos}
    dimensions = parse_dimensions(request.dimensions)
    check_dimensions(infos, dimensions)
    feed: dict[str, Array] = {}
    images: dict[str, list[Source]] = {}
    for name, given in _assignments(request.given, by_name):
        if given.is_picture:
            images.setdefault(name, []).append(given)
        elif name in feed or name in images:
            raise UsageError(
                f"input {name!r} is given twice; only images of one input may be several (a batch)"
            )
        else:
            feed[name] = _read_input(given, by_name[name], columns)
    for name, pictures in images.items():
        if name in feed:
            raise UsageError(f"input {name!r} is given both as an array and as an image")
        feed[name] = _image_batch(by_name[name], pictures, dimensions, request.preparation)
    missing = [info for info in infos if info.name not in feed]
    if missing and not request.fill_randomly:
        listed = ", ".join(f"{info.name} ({info.type}, {list(info.shape)})" for info in missing)
        raise UsageError(f"no value for {listed}; give -i NAME=FILE, or --random to fill in random values")
    _learn_dimensions(by_name, feed, dimensions)
    generator = np.random.default_rng(request.seed)
    for info in missing:
        feed[info.name] = random_value(info, dimensions, generator)
    return feed


def random_feed(infos: Sequence[InputInfo], dimensions: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Seeded random values for all inputs."""
    check_dimensions(infos, dimensions)
    generator = np.random.default_rng(seed)
    return {info.name: random_value(info, dimensions, generator) for info in infos}


def random_value(info: InputInfo, dimensions: Mapping[str, int], generator: np.random.Generator) -> Array:
    """Uniform in [0, 1) for floats, 0 or 1 for integers (valid as an index nearly everywhere) and bools."""
    shape = tuple(each if isinstance(each, int) else dimensions.get(each or "", 1) for each in info.shape)
    dtype = element_type(info)
    # Random numbers are made in 64 bits.
    _check_memory(info, shape, math.prod(shape) * max(dtype.itemsize, 8))
    if dtype.kind == "s":
        return np.full(shape, "", dtype=object)
    if dtype.is_float or dtype.kind == "c":
        return generator.random(shape).astype(dtype.storage)
    return generator.integers(0, 2, shape).astype(dtype.storage)


def _check_memory(info: InputInfo, shape: Sequence[int], need: int) -> None:
    free = free_memory()
    if need < 1 << 62 and (free is None or need <= free):
        return
    is_absurd = need >= 1 << 62 or free is None
    takes = "more than any machine has" if is_absurd else f"{amount(need)}, {amount(free or 0)} are free"
    raise InvalidArgument(
        f"input {info.name!r} of shape {list(shape)} takes {takes}; choose smaller sizes with --dim"
    )


def check_dimensions(infos: Sequence[InputInfo], dimensions: Mapping[str, int]) -> None:
    """`UsageError` for a name in `dimensions` that no input's shape has."""
    check_dimension_names([info.shape for info in infos], dimensions)


def check_dimension_names(
    shapes: Iterable[Sequence[int | str | None]], dimensions: Mapping[str, int]
) -> None:
    """As `check_dimensions`, by the inputs' shapes."""
    known = sorted({each for shape in shapes for each in shape if isinstance(each, str)})
    for name in dimensions:
        if name not in known:
            raise UsageError(
                f"--dim {name}: the model has no such dimension (it has {', '.join(known) or 'none'})"
            )


def _assignments(given: Sequence[str], by_name: Mapping[str, InputInfo]) -> list[tuple[str, Source]]:
    """Splits NAME=FILE; the name may be absent where there is one input, and for an .npz of named arrays."""
    found: list[tuple[str, Source]] = []
    if sum(word.rpartition("=")[2] == STANDARD_INPUT for word in given) > 1:
        raise UsageError("the standard input (-) can be one input only")
    for word in given:
        name, equals, rest = word.partition("=")
        if equals and name in by_name:
            found.append((name, source(rest, f"-i {word}")))
        elif equals and not Path(word).exists():
            raise UsageError(
                f"-i {word}: the model has no input {name!r} (inputs: {', '.join(by_name) or 'none'})"
            )
        else:
            value = source(word)
            names = _names_inside(value, by_name)
            if names is None:
                listed = ", ".join(by_name) or "none"
                raise UsageError(f"-i {word}: say which input it is, as NAME={word} (inputs: {listed})")
            found += [(each, value) for each in names]
    return found


def _names_inside(value: Source, by_name: Mapping[str, InputInfo]) -> list[str] | None:
    """The inputs that a file given without a name has values of; None where it does not say."""
    only = next(iter(by_name)) if len(by_name) == 1 else None
    if value.ending != ".npz":
        return None if only is None else [only]
    with _opened_npz(value) as archive:
        files: list[str] = archive.files
    if only is not None and files == [_UNNAMED]:
        return [only]
    unknown = sorted(set(files) - set(by_name))
    if unknown:
        raise UsageError(
            f"{value} holds {shortened(', '.join(files))}, and {unknown[0]!r} is no input "
            f"(inputs: {', '.join(by_name) or 'none'})"
        )
    return files


def _opened_npz(value: Source) -> Any:
    value.require()
    with value.open() as file:
        start = file.read(6)
    if not start.startswith(tuple(ARRAY_STARTS)):
        raise InvalidArgument(f"{value} is not an array file of NumPy's: it does not begin like one")
    with _reading(f"{value} is not an array file of NumPy's"):
        return np.load(value.path or value.open(), allow_pickle=False)


@contextmanager
def _reading(problem: str) -> Iterator[None]:
    """What a reader stumbles over is the file's fault: NumPy, zipfile and zlib raise all kinds of errors."""
    try:
        yield
    except Exception as error:
        raise InvalidArgument(f"{problem}: {error or type(error).__name__}") from error


def _read_input(value: Source, info: InputInfo, columns: Sequence[Column] | None) -> Array:
    is_table = value.ending in TABLE_ENDINGS or (columns is not None and value.is_text)
    if not is_table:
        return _read_array(value, info.name, element_type(info))
    from vkml.cli.tables import features, read_table

    if columns is None:
        raise UsageError(f"{value}: the model does not say what the columns of a table are; give an .npy")
    with value.as_file("standard-input.csv") as path:
        return features(read_table(path), columns).astype(element_type(info).storage)


def _read_array(value: Source, name: str, dtype: DType) -> Array:
    """The array in a file, in the input's type where it can be converted without loss."""
    value.require()
    if value.ending == ".pb":
        array = _read_tensor(value)
    elif value.ending in ARRAY_STARTS.values():
        loaded = _opened_npz(value)
        if isinstance(loaded, np.ndarray):
            array = loaded
        else:
            with loaded:
                key = name if name in loaded.files else loaded.files[0] if len(loaded.files) == 1 else None
                if key is None:
                    raise UsageError(
                        f"{value} has no array {name!r} (it has {', '.join(loaded.files) or 'none'})"
                    )
                with _reading(f"{value}: the array {key!r} cannot be read"):
                    array = loaded[key]
    else:
        raise UsageError(
            f"{value}: cannot read {value.ending or 'a file without an ending'} ({', '.join(KNOWN_ENDINGS)})"
        )
    return _converted(array, dtype, f"{value} for input {name!r}")


def _converted(value: Array, dtype: DType, what: str) -> Array:
    """`value` in the storage of `dtype`, where no value changes but for a float's rounding."""
    if value.dtype == dtype.storage or dtype.kind == "s":
        return value
    if value.dtype.kind in "fiub" and dtype.kind in "fiub" and dtypes.can_hold(dtype, value):
        return value.astype(dtype.storage)
    raise InvalidArgument(f"{what} holds {value.dtype} values; the model wants {dtype.numpy_name}")


def _read_tensor(value: Source) -> Array:
    """The value of a file that holds one TensorProto, as the ONNX test suites do."""
    from vkml.onnx.external import ExternalFiles, map_file
    from vkml.onnx.messages import TENSOR
    from vkml.onnx.tensor import Tensor
    from vkml.onnx.wire import read_message

    view = memoryview(value.data) if value.path is None else map_file(value.path)
    try:
        proto = read_message(TENSOR, view, 0, len(view))
    except InvalidProtobuf as problem:
        others = "" if value.path is not None else "neither a picture nor an array of NumPy's, and "
        raise InvalidProtobuf(f"{value} is {others}not a TensorProto: {problem}") from None
    folders = () if value.path is None else (value.path.parent,)
    return Tensor(proto, ExternalFiles(folders), str(value)).array()


def _image_batch(
    info: InputInfo, pictures: Sequence[Source], dimensions: Mapping[str, int], preparation: Preparation
) -> Array:
    shape = tuple(dimensions.get(each, each) if isinstance(each, str) else each for each in info.shape)
    dtype = element_type(info)
    for picture in pictures:
        picture.require()
    values = [read_image(picture, shape, dtype, f"input {info.name!r}", preparation) for picture in pictures]
    if len({value.shape for value in values}) > 1:
        sizes = ", ".join(f"{each} {value.shape}" for each, value in zip(pictures, values, strict=True))
        raise InvalidArgument(f"the images of input {info.name!r} differ in shape: {sizes}")
    if len(shape) < 4:
        if len(values) > 1:
            raise InvalidArgument(
                f"input {info.name!r} has no batch dimension, {len(values)} images are given"
            )
        return values[0]
    if isinstance(shape[0], int) and shape[0] != len(values):
        raise InvalidArgument(
            f"input {info.name!r} takes a batch of {shape[0]}, {counted(len(values), 'image')} given"
        )
    return np.stack(values)


def _learn_dimensions(
    by_name: Mapping[str, InputInfo], feed: Mapping[str, Array], sizes: dict[str, int]
) -> None:
    """Adds the sizes that given arrays have for symbolic dimensions, so that random inputs fit them."""
    stated = dict(sizes)
    for name, value in feed.items():
        for each, size in zip(by_name[name].shape, value.shape, strict=False):
            if isinstance(each, str) and stated.get(each, size) != size:
                raise UsageError(
                    f"--dim {each}={stated[each]}: what is given for input {name!r} has {size} there"
                )
            if isinstance(each, str):
                sizes.setdefault(each, size)


def total_bytes(feed: Mapping[str, Array]) -> int:
    """Bytes of all arrays together."""
    return sum(math.prod(value.shape) * value.itemsize for value in feed.values())
