"""What `SessionOptions` say of the model itself: sizes, initializers, files, and where it is to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vkml.engine.array_likes import as_integer
from vkml.engine.configuration import Configured
from vkml.engine.device_array import on_host
from vkml.errors import InvalidArgument, InvalidSetting, WrongType
from vkml.ir import Constant, dtypes
from vkml.onnx.alterations import Alterations

if TYPE_CHECKING:
    from vkml.engine.ep_devices import OrtEpDevice

_FOLDER = "session.model_external_initializers_file_folder_path"


class ModelSettings(Configured):
    """Methods of onnxruntime's ``SessionOptions``, and what they were told."""

    @property
    def _told(self) -> dict[str, Any]:
        found: dict[str, Any] = self.__dict__.setdefault("_model_settings", {})
        return found

    def _of(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = self._told.setdefault(kind, {})
        return found

    # -- entries --------------------------------------------------------------------------------------------

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry for `get_session_config_entry`; docs/onnxruntime.md lists those that sessions go by.

        Args:
            key: of the entry.
            value: of the entry.
        """
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """The value of an entry.

        Raises:
            InvalidSetting: there is none.
        """
        return self._entry(key)

    # -- sizes ----------------------------------------------------------------------------------------------

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fixes a size that the model leaves open.

        Args:
            name: that the model gives it.
            size: to take; a dimension that the model does not have is passed over.
        """
        self._of("sizes")[name] = _size(name, size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fixes the sizes of inputs' dimensions of one denotation.

        Args:
            denotation: as in ``DATA_BATCH``.
            size: to take.
        """
        self._of("denotations")[denotation] = _size(denotation, size)

    # -- initializers ---------------------------------------------------------------------------------------

    def add_initializer(self, name: str, value: Any) -> None:
        """Has sessions take a value in the place of a model's initializer of that name, where it has one.

        Args:
            name: of the initializer.
            value: an `OrtValue` of its type and shape.
        """
        self._of("initializers")[name] = _constant(name, value)

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Has sessions take values in the place of initializers whose data lie in other files.

        These files are not looked for.

        Args:
            names: of the initializers; a model without them is refused.
            values: an `OrtValue` for each.
        """
        if len(names) != len(values):
            raise InvalidSetting(f"there are {len(names)} names and {len(values)} values; each has one")
        made = {name: _constant(name, value) for name, value in zip(names, values, strict=True)}
        self._of("external").update(made)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], contents: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Has sessions take bytes for files that initializers' data lie in.

        Args:
            names: of the files, as the model states them.
            contents: the bytes of each; not copied.
            lengths: how many of them count.
        """
        if not len(names) == len(contents) == len(lengths):
            raise InvalidSetting(
                f"there are {len(names)} names, {len(contents)} contents and {len(lengths)} lengths"
            )
        for name, content, length in zip(names, contents, lengths, strict=True):
            try:
                view = memoryview(content).cast("B").toreadonly()
            except TypeError as error:
                raise WrongType(f"the content of {name!r} is no bytes: {error}") from None
            size = as_integer(length, "a length")
            if not 0 <= size <= len(view):
                raise InvalidArgument(f"the content of {name!r} has {len(view)} bytes, not {size}")
            self._of("files")[name] = view[:size]

    def alterations(self, fed: frozenset[str] = frozenset()) -> Alterations:
        """All of that, for reading the model.

        Args:
            fed: initializers that are inputs of this session.
        """
        return Alterations(
            sizes=dict(self._of("sizes")),
            sizes_by_denotation=dict(self._of("denotations")),
            initializers=dict(self._of("initializers")),
            external=dict(self._of("external")),
            files=dict(self._of("files")),
            fed=fed,
        )

    @property
    def data_folder(self) -> str | None:
        """Where files of initializers are looked for; None for beside the model."""
        return self.entries.get(_FOLDER)

    # -- where it runs --------------------------------------------------------------------------------------

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Adds a provider that sessions use which are given none.

        Args:
            name: of the provider.
            options: of it.
        """
        self._told.setdefault("providers", []).append((name, dict(options)))

    def add_provider_for_devices(self, devices: Sequence[OrtEpDevice], options: Mapping[str, str]) -> None:
        """Adds the provider of some devices of `get_ep_devices`, on these.

        Args:
            devices: all of one provider.
            options: of it.
        """
        names = {device.ep_name for device in devices}
        if len(names) != 1:
            raise InvalidArgument(f"devices of one provider are needed, got those of {sorted(names)}")
        self._told["devices"] = [device.name for device in devices]

    def set_provider_selection_policy(self, policy: Any) -> None:
        """Says which devices sessions prefer that are given none.

        Args:
            policy: an `OrtExecutionProviderDevicePolicy`.
        """
        name = getattr(policy, "name", None)
        if not isinstance(name, str):
            raise WrongType(f"a policy is an OrtExecutionProviderDevicePolicy, not {policy!r}")
        on_cpu = name in ("PREFER_CPU", "MIN_OVERALL_POWER")
        self._told["devices"] = ["cpu"] if on_cpu else ["auto"]

    def set_provider_selection_policy_delegate(self, delegate: Callable[..., Sequence[OrtEpDevice]]) -> None:
        """Has a function choose the devices of sessions that are given none.

        Args:
            delegate: called with the devices, the model's metadata, the program's (none) and how many it may
                choose; returns those to use.
        """
        if not callable(delegate):
            raise WrongType(f"the delegate is called with devices, not {delegate!r}")
        self._told["delegate"] = delegate

    def has_providers(self) -> bool:
        """Whether any of these was called."""
        return any(self._told.get(kind) for kind in ("providers", "devices", "delegate"))

    @property
    def added_providers(self) -> list[tuple[str, dict[str, str]]]:
        """Those of `add_provider`."""
        return list(self._told.get("providers", ()))

    def chosen_devices(self, metadata: Mapping[str, str]) -> list[str] | None:
        """Names of devices to use; None where nothing says so.

        Args:
            metadata: of the model.
        """
        delegate = self._told.get("delegate")
        if delegate is None:
            found: list[str] | None = self._told.get("devices")
            return found
        from vkml.engine.ep_devices import get_ep_devices

        known = get_ep_devices()
        return [device.name for device in delegate(known, dict(metadata), {}, len(known))] or ["auto"]

    # -- loading --------------------------------------------------------------------------------------------

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """Has sessions that are being made with these options end with `ModelLoadCanceled`.

        Args:
            is_cancelled: whether they are to end.
        """
        self._told["is_cancelled"] = bool(is_cancelled)

    @property
    def is_load_cancelled(self) -> bool:
        """What the last call of `set_load_cancellation_flag` said."""
        return bool(self._told.get("is_cancelled"))

    def set_ep_context_data_read_func(self, read_func: Callable[..., None], max_data_size: int) -> None:
        """Keeps a function for data of compiled nodes, which models for vkml do not have.

        Args:
            read_func: never called.
            max_data_size: at most how many bytes it may give.
        """
        if not callable(read_func):
            raise WrongType(f"a function is needed, not {read_func!r}")
        self._told["read_func"] = (read_func, as_integer(max_data_size, "a size"))

    def clear_ep_context_data_read_func(self) -> None:
        """Forgets that function."""
        self._told.pop("read_func", None)


def _size(name: str, size: int) -> int:
    if not isinstance(name, str):
        raise WrongType(f"a dimension is named by a str, not {name!r}")
    found = as_integer(size, f"the size of {name!r}")
    if found < 0:
        raise InvalidArgument(f"the size of {name!r} is not negative, got {found}")
    return found


def _constant(name: str, value: Any) -> Constant:
    from vkml.engine.ort_value import OrtValue

    if not isinstance(name, str):
        raise WrongType(f"an initializer is named by a str, not {name!r}")
    if not isinstance(value, OrtValue) or not value.is_tensor():
        raise InvalidSetting(f"the value of initializer {name!r} is an OrtValue of a tensor, not {value!r}")
    array = on_host(value.value)
    return Constant(dtypes.from_numpy(array.dtype), array.shape, array)
