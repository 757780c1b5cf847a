"""Forked children of a process that uses Vulkan: at once an error, or a device of their own; never a hang."""

import os

import pytest

from tests.vulkan.helpers import every_device, run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

START = """
import gc, os, sys, threading
import numpy as np
import vkml
from tests.patience import patience
from tests.robustness.forks import in_children
from tests.robustness.models import product
from vkml.errors import DeviceError
from vkml.vulkan import Device, MemoryKind, find_device, live_objects

NAME = {name!r}
X = np.ones((1, 4), np.float32)

def refuses(act, *words):
    try:
        act()
    except DeviceError as error:
        for word in words:
            assert word in str(error), (word, error)
    else:
        raise AssertionError("no error")

def opens():
    return vkml.InferenceSession(product(), devices=NAME)

def uses():
    # works, or is refused at once
    try:
        session = opens()
    except DeviceError as error:
        assert "this process was forked" in str(error), error
    else:
        runs(session)

def runs(session):
    assert session.run(None, {{"x": X}})[0].tolist() == [[-2.0, 2.0, 6.0]]
    assert session.run(None, {{"x": np.ones((3, 4), np.float32)}})[0].shape == (3, 3)
"""


def run(code, info, tmp_path, **environment):
    done = run_python(START.format(name=info.name) + code, tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done", done.stderr


@every_device
def test_what_the_parent_has_open_is_refused_at_once(info, tmp_path):
    code = """
session = opens()
runs(session)
device = Device(find_device(NAME, True))
memory = device.allocate(64, MemoryKind.DEVICE)
timeline = device.timeline()

def child(number):
    words = ("was opened before this process was forked", "'spawn'")
    refuses(lambda: session.run(None, {"x": X}), *words)
    refuses(lambda: session.run(["y"], {"x": X}), *words)
    refuses(lambda: session.run(None, {"x": np.ones((7, 4), np.float32)}), *words)  # would plan
    refuses(lambda: device.allocate(4, MemoryKind.DEVICE), *words)
    refuses(lambda: device.upload(memory, 0, b"abcd"), *words)
    refuses(lambda: device.download(memory), *words)
    refuses(lambda: timeline.wait(1), *words)
    refuses(device.recorder, *words)
    refuses(device.wait_idle, *words)
    refuses(device.save_pipeline_cache, *words)
    refuses(lambda: Device(device.info), "list the devices anew")

in_children(2, child)
runs(session)
print("done")
"""
    run(code, info, tmp_path)


@every_device
def test_closing_in_the_child_leaves_the_parents_device_alone(info, tmp_path):
    code = """
session = opens()
runs(session)
device = Device(find_device(NAME, True))
parts = [device.allocate(64, MemoryKind.DEVICE), device.timeline(), device.recorder().finish()]
there = live_objects()

def child(number):
    global session, device
    assert live_objects() == {}
    for part in parts:
        part.free()
    if number:
        session.close()
        device.close()
        vkml.close_devices()
    del session, device
    gc.collect()
    assert live_objects() == {}

in_children(2, child)
assert live_objects() == there
runs(session)
device.upload(parts[0], 0, bytes(range(64)))
assert bytes(device.download(parts[0])) == bytes(range(64))
print("done")
"""
    run(code, info, tmp_path)


@every_device
def test_a_child_of_a_process_with_an_open_device_is_told_what_to_do(info, tmp_path):
    """No driver tried so far bears it: they wait for the parent's threads, at once or at the child's exit."""
    code = """
session = opens()
runs(session)

def child(number):
    assert NAME in [each.name for each in vkml.devices(True)]
    for _ in range(2):
        refuses(opens, NAME, "this process was forked", "'spawn'")
    assert live_objects() == {}
    vkml.InferenceSession(product(), devices="cpu").run(None, {"x": X})
    if number:
        in_children(1, lambda number: child(0))

in_children(2, child)
runs(session)
print("done")
"""
    run(code, info, tmp_path)


@every_device
def test_a_child_opens_what_its_parent_has_listed(info, tmp_path):
    code = f"""
vkml.devices()

def child(number):
    if {not info.is_software}:
        refuses(opens, "had listed", "'spawn'")
    else:
        for _ in range(2):
            with opens() as new:
                runs(new)
        vkml.close_devices()
        assert live_objects() == {{}}

in_children(2, child)
with opens() as session:
    runs(session)
print("done")
"""
    run(code, info, tmp_path)


EXIT = """
def ends(act):
    child = os.fork()
    if not child:
        import faulthandler
        faulthandler.dump_traceback_later(patience(30), exit=True)
        act()
        faulthandler.cancel_dump_traceback_later()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

vkml.devices()
ends(uses)
session = opens()
runs(session)
if IS_SOFTWARE:
    # NVIDIA's library gives back in the child, at a normal exit, what the parent computes with.
    ends(lambda: None)
    ends(uses)
session.close()
vkml.close_devices()
ends(uses)
runs(opens())
print("done")
"""


@every_device
def test_children_that_end_like_any_process(info, tmp_path):
    """Not by os._exit, as those of multiprocessing: what runs at the exit finds nothing to destroy."""
    # Not the validation layer: it joins threads at the exit, and a child does not have them.
    run(EXIT.replace("IS_SOFTWARE", str(info.is_software)), info, tmp_path, VKML_VALIDATE="")


@every_device
def test_a_fork_while_another_thread_opens_devices(info, tmp_path):
    """The loader's lock is held then, and would be for ever in the child."""
    code = """
found = find_device(NAME, True)
started = threading.Event()

def work():
    while True:
        Device(found).close()
        started.set()

threading.Thread(target=work, daemon=True).start()
started.wait()

def child(number):
    assert NAME in [each.name for each in vkml.devices(True)]
    uses()

for _ in range(8):
    in_children(1, child)
print("done")
os._exit(sys.stdout.flush() or 0)
"""
    run(code, info, tmp_path)


@every_device
def test_a_fork_while_other_threads_run_and_plan(info, tmp_path):
    code = """
session, other = opens(), opens()
started = [threading.Event(), threading.Event()]

def work(started, session, many):
    rows = 1
    while True:
        session.run(None, {"x": np.ones((rows, 4), np.float32)})
        rows += many
        started.set()

for event, used, many in zip(started, (session, other), (0, 1)):
    threading.Thread(target=work, args=(event, used, many), daemon=True).start()
for event in started:
    event.wait()

def child(number):
    refuses(opens, "this process was forked")

for _ in range(8):
    in_children(1, child)
print("done")
os._exit(sys.stdout.flush() or 0)
"""
    run(code, info, tmp_path)


@every_device
def test_children_of_a_process_with_devices_are_not_validated(info, tmp_path):
    """Any of the parent's threads may have held the layer's locks: the child would wait for ever, or die."""
    code = """
from vkml.vulkan.instance import get_instance

def is_validated():
    return get_instance().has_names

def asks(wanted, generations=2):
    def child(number):
        assert is_validated() is wanted
        vkml.devices(True)
        if generations > 1:
            asks(wanted, generations - 1)
    in_children(1, child)

there = is_validated()  # the layer is not on every machine
vkml.devices()
asks(there)  # what lists devices holds a lock that a fork waits for
opens().close()
asks(False)
vkml.close_devices()
asks(False)
print("done")
"""
    run(code, info, tmp_path, VKML_VALIDATE="1")


@every_device
def test_a_fork_in_the_middle_of_a_wait(info, tmp_path):
    """By a signal handler: the child's copy of the wait ends with an error."""
    code = """
import signal
device = Device(find_device(NAME, True))
timeline = device.timeline()
children = []
signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    while not children:
        assert not timeline.wait(1, 0.0, timeout_seconds=5)
except DeviceError as error:
    os._exit(0 if not children[0] and "forked" in str(error) else 2)
if not children[0]:
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
print("done")
"""
    run(code, info, tmp_path)
