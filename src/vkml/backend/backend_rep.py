"""A model that a backend has prepared."""

from __future__ import annotations

from typing import Any

from vkml.engine.options import RunOptions
from vkml.engine.session import InferenceSession
from vkml.errors import InvalidArgument

_OPTIONS = ("log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches")
"""Settings of runs that may come this way."""


class VkmlBackendRep:
    """A session as ONNX's backends hand it out.

    Args:
        session: that runs the model.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **options: Any) -> list[Any]:
        """Runs the model.

        Args:
            inputs: a list or tuple of arrays in the order of the inputs, or the one input's array.
            options: settings of `RunOptions`; those that have nothing to do with runs are passed over.

        Returns:
            The outputs in order.

        Raises:
            InvalidArgument: there are more or fewer inputs than the model has.
        """
        names = [value.name for value in self._session.get_inputs()]
        given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(given) > len(names):
            raise InvalidArgument(f"the model has {len(names)} inputs ({names}), got {len(given)}")
        of_run = RunOptions(**{name: value for name, value in options.items() if name in _OPTIONS})
        return self._session.run(None, dict(zip(names, given, strict=False)), of_run)
