"""One launch by itself, waited for: what is computed at load."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from vkml.engine.launches import Launches
from vkml.errors import DeviceError
from vkml.kernels.spec import Dispatch
from vkml.kernels.views import Buffer
from vkml.lowering.numbers import Numbers

if TYPE_CHECKING:
    from vkml.vulkan import Device, Pipeline


def run_once(
    device: Device, dispatch: Dispatch, pipelines: Mapping[int, Pipeline], addresses: Mapping[Buffer, int]
) -> None:
    """Runs a launch and returns when it is done, its results visible to the host and to later launches.

    Args:
        device: that runs it.
        dispatch: without open sizes.
        pipelines: by the identity of kernels.
        addresses: of its buffers.
    """
    launches = Launches([[dispatch]], pipelines, Numbers())
    recorder = device.recorder(dispatch.kernel.label)
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
