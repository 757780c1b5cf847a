"""`install_as_onnxruntime`: programs that import onnxruntime get vkml."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from vkml.engine.environment import API_VERSION

_log = logging.getLogger("vkml")
_NAME = "onnxruntime"
_MODULES = (
    "backend", "backend.backend", "backend.backend_rep", "capi", "capi._pybind_state",
    "capi.onnxruntime_inference_collection", "capi.onnxruntime_pybind11_state", "capi.onnxruntime_validation",
)  # fmt: skip
"""Of vkml, each of which stands for onnxruntime's of the same name."""


class Installation:
    """What `install_as_onnxruntime` has changed; a context manager that changes it back at its end."""

    def __init__(self) -> None:
        names = [_NAME, *(f"{_NAME}.{name}" for name in _MODULES)]
        loaded = [name for name in sys.modules if name.partition(".")[0] == _NAME]
        self._before = {name: sys.modules.pop(name) for name in loaded}
        if _NAME in self._before and not isinstance(self._before[_NAME], _Stand):
            _log.warning(
                "onnxruntime had been imported before vkml was installed in its place: modules that hold "
                "names of it keep them; call vkml.install_as_onnxruntime() first"
            )
        stand = _Stand(_NAME)
        sys.modules[_NAME] = stand
        for name in _MODULES:
            sys.modules[f"{_NAME}.{name}"] = importlib.import_module(f"vkml.{name}")
        self._names = names
        self._finder = _Finder()
        sys.meta_path.append(self._finder)

    def remove(self) -> None:
        """Puts back what was there before."""
        for name in self._names:
            sys.modules.pop(name, None)
        sys.modules.update(self._before)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)

    def __enter__(self) -> Installation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def install_as_onnxruntime() -> Installation:
    """Has ``import onnxruntime`` give vkml, in this process, for programs that are not to be edited.

    To be called before they are imported. ``onnxruntime.__version__`` is then the release whose interface
    vkml has; all else is vkml's. Parts of onnxruntime's package that are no runtime (quantization, tools,
    transformers) are not there.

    Returns:
        What takes it back; as a context manager, at its end.

    Example:
        >>> import vkml
        >>> with vkml.install_as_onnxruntime():
        ...     import onnxruntime
        >>> onnxruntime.InferenceSession is vkml.InferenceSession
        True
    """
    return Installation()


class _Stand(ModuleType):
    """The module ``onnxruntime``: vkml's names, onnxruntime's version."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "vkml under the name of onnxruntime.")
        self.__version__ = API_VERSION
        self.version = API_VERSION
        self.__path__: list[str] = []  # a package, in whose folders nothing is looked for
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__package__ = name
        self.__file__ = str(Path(__file__).with_name("__init__.py"))

    def get_version_string(self) -> str:
        """The release whose interface this is."""
        return API_VERSION

    def __getattr__(self, name: str) -> Any:
        import vkml

        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(vkml, name)

    def __dir__(self) -> Iterable[str]:
        import vkml

        return sorted({*super().__dir__(), *dir(vkml)})


class _Metadata(Distribution):
    """What `importlib.metadata` says of the package."""

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {API_VERSION}\n"
        return None

    def locate_file(self, path: Any) -> Path:
        return Path(__file__).parent.joinpath(path)


class _Finder(DistributionFinder):
    """Finds that metadata, behind all other finders: where onnxruntime is installed, its own count."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        wanted = getattr(context, "name", None)
        return [_Metadata()] if wanted is None or wanted == _NAME else []
