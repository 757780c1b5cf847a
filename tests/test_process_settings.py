"""Settings of the process are as they were when the last context closes, after interrupts and forks, too."""

from __future__ import annotations

import os
import threading

import pytest

from tests.patience import patience
from tests.robustness.processes import output_of, run_python
from vkml.process_settings import ProcessSetting


class Setting(ProcessSetting[int]):
    """A number, and what was written."""

    def __init__(self, value: int, forks_set_back: bool = True) -> None:
        self.value, self.written = value, [value]
        super().__init__(lambda: self.value, self.write, forks_set_back=forks_set_back)

    def write(self, value: int) -> None:
        self.value = value
        self.written.append(value)


def test_the_last_context_sets_back() -> None:
    setting = Setting(7)
    first, second = setting.changed(1), setting.changed(1)
    with first:
        assert setting.value == 1
        second.__enter__()
    assert setting.value == 1
    second.__exit__()
    assert setting.value == 7
    with pytest.raises(ValueError, match="wrong"), setting.changed(2):
        raise ValueError("wrong")
    assert setting.written == [7, 1, 1, 7, 2, 7]


def test_threads_overlap() -> None:
    setting, inside = Setting(7), threading.Barrier(4, timeout=patience(60))

    def work() -> None:
        for _ in range(200):
            with setting.changed(1):
                inside.wait()
                assert setting.value == 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert setting.value == 7 and inside.n_waiting == 0 and not inside.broken


INTERRUPTED = """
    from tests.robustness.interrupts import interrupted_everywhere
    from tests.test_process_settings import Setting

    def change():
        with setting.changed(1):
            assert setting.value == 1

    def check():
        assert setting.value == 7

    setting = Setting(7)
    files = ["vkml/process_settings.py", "test_process_settings.py"]
    print(interrupted_everywhere(change, check, files) > 20)
"""


def test_an_interrupt_leaves_it_set_back() -> None:
    done = run_python(INTERRUPTED)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stdout + done.stderr


FORKED = """
    import threading
    from tests.robustness.forks import in_children
    from tests.test_process_settings import Setting

    def hold():
        with soon.changed(1), late.changed(1), soon._lock, late._lock:
            held.set()
            done.wait()

    def child(number):
        assert (soon.value, late.value) == (7, 1)
        with soon.changed(3), late.changed(3):
            assert (soon.value, late.value) == (3, 3)
        assert (soon.value, late.value) == (7, 7)

    soon, late = Setting(7), Setting(7, forks_set_back=False)
    held, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    in_children(2, child)
    done.set()
    thread.join()
    print(soon.value, late.value)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_has_none_of_its_parents_contexts() -> None:
    assert output_of(FORKED) == "7 7\n"
