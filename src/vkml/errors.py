"""The exception tree: every error vkml raises on purpose derives from `Error`.

Names shared with onnxruntime (`InvalidGraph`, `InvalidArgument`, `NoSuchFile`, …) mean the same here, so code
written for that package catches the same things. A message says what was asked, what was found, where, and
what to do next.
"""


class Error(Exception):
    """Base of every vkml exception."""


class Fail(Error):
    """An operation failed for a reason that has no more precise class."""


class RuntimeException(Error):
    """Running a plan failed."""


class EngineError(RuntimeException):
    """The engine found itself in a state it cannot go on from: a bug in vkml."""


class InvalidArgument(Error, ValueError):
    """A caller's argument is wrong: a feed with missing, extra, misshapen or mistyped entries, an option."""


class WrongType(InvalidArgument, TypeError):
    """An argument is of a type that is not taken; a TypeError, too."""


class InvalidDevice(InvalidArgument, RuntimeError):
    """There is no such device, or tensors are on several where they have to be on one."""


class UnknownOption(InvalidArgument, AttributeError):
    """A setting that there is not; the message names the nearest that there is."""


class InvalidSetting(InvalidArgument, RuntimeError):
    """A setting of the process, an entry of a configuration or a provider that there is not; a RuntimeError,
    too, which onnxruntime raises for these."""


class NoSuchFile(Error, FileNotFoundError):
    """A model, or a file it refers to, does not exist."""


class InvalidCheckpoint(Error, ValueError):
    """A file of tensors is damaged, was not written to its end, or is something else."""


class InvalidData(Error, ValueError):
    """An item of a dataset cannot be read; the message names the file, and the row of a table."""


class MissingPackage(Error, ImportError):
    """A package is needed that is not installed; the message says how to get it."""


class ModelError(Error):
    """A model cannot be used."""


class NoModel(ModelError):
    """There is no model in what was given."""


class ModelChanged(ModelError):
    """A model's file is no longer what it was when the session that needs it was made."""


class ModelLoadCanceled(ModelError):
    """A session was not made since its options' cancellation flag was set."""


class InvalidProtobuf(ModelError):
    """The bytes are not a well-formed ONNX protobuf."""


class InvalidGraph(ModelError):
    """The protobuf is well-formed, the graph in it not: cycles, dangling names, wrong types or attributes."""


class ShapeError(InvalidGraph, ValueError, RuntimeError):
    """Shapes that do not fit together; a RuntimeError, too, which PyTorch raises for them."""


class OperandError(ShapeError, RuntimeError):
    """Tensors, or numbers beside them, that an operation of a program does not take: types, sizes, axes."""


class NotImplemented(ModelError):
    """Legal ONNX that vkml cannot run."""


class UnsupportedOperator(NotImplemented):
    """One or more operators of a model are unknown; the message lists all of them."""


class NotDifferentiable(RuntimeException, RuntimeError):
    """A derivative was asked for that does not exist, or that vkml does not know."""


class ChangedInPlace(NotDifferentiable):
    """A gradient needs elements that were changed in place since they were read."""


class AnomalyFound(RuntimeException, RuntimeError):
    """NaN or infinity was found where it was looked for: in a loss, or by `vkml.autograd.detect_anomaly`."""


class LinAlgError(RuntimeException, RuntimeError):
    """A matrix has no factorisation, inverse or solution of the kind that was asked for."""


class CaptureError(RuntimeException, RuntimeError):
    """A function that is to be captured does what cannot be repeated without it."""


class CompileError(Error):
    """A kernel did not compile: a bug in vkml."""


class DeviceError(RuntimeException):
    """A device refused something."""


class NoDevice(DeviceError):
    """A device was asked for that is not there."""


class DeviceLost(DeviceError):
    """The driver gave the device up (a hang, a fault, a reset); the session must be created anew."""


class OutOfMemory(DeviceError, MemoryError):
    """A device has too little memory; the message names device, need and free."""


class IndexOutOfRange(RuntimeException, IndexError, RuntimeError):
    """A kernel met an index from the model's data that lies outside its tensor; PyTorch has both kinds."""
