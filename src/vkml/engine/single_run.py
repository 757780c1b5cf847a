"""Launches by themselves, waited for: what is computed at load."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vkml.engine.launches import Launches
from vkml.errors import DeviceError
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer
from vkml.lowering.numbers import Numbers

if TYPE_CHECKING:
    from vkml.vulkan import Device, Pipeline


def run_once(
    device: Device,
    dispatches: Sequence[Dispatch],
    pipelines: Mapping[int, Pipeline],
    addresses: Mapping[Buffer, int],
) -> None:
    """Runs launches and returns when they are done, results visible to the host and to later launches.

    Args:
        device: that runs them.
        dispatches: without open sizes; none reads what another writes.
        pipelines: by the identity of kernels.
        addresses: of their buffers.
    """
    launches = Launches([dispatches], pipelines, Numbers())
    recorder = device.recorder(dispatches[0].kernel.label)
    push, grids = launches.numbers(launches.placed(addresses), ())
    recorder.dispatch_table(device.dispatch_table(launches.levels), push, grids)
    recorder.barrier()
    recorder.barrier_to_host()
    commands = recorder.finish()
    submission = device.submission(commands)
    try:
        submission.submit()
        submission.wait()
    except BaseException:
        with contextlib.suppress(DeviceError):
            device.wait_idle()  # after an interrupt it may be at work still
        raise
    finally:
        submission.free()
        commands.free()
