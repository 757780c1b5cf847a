"""Whether a session goes by measured times: what is needed for it is imported where it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vkml.engine.options import SessionOptions
    from vkml.engine.session import InferenceSession
    from vkml.engine.tuning import Tuning
    from vkml.engine.weights import WeightStore
    from vkml.vulkan import Device, DeviceInfo


def tuning_of(
    info: DeviceInfo, opened: Callable[[], Device], weights: WeightStore, options: SessionOptions
) -> Tuning | None:
    """What a session with these options goes by on a device; None where rules are all.

    Args:
        info: the device.
        opened: waits for it, and returns it open.
        weights: of the session there.
        options: of the session.

    Raises:
        InvalidArgument: the file that they name is no tuning file.
    """
    if options.tune == "off" and not options.tuning_file:
        return None
    from vkml.engine.tuning import Tuning

    return Tuning(info, opened, weights, options)


def tunings_of(session: InferenceSession) -> list[Tuning]:
    """What a session goes by, of each of its devices that it measures or has a file for."""
    return [site.tuning for site in session._placement.sites if site.tuning is not None]
