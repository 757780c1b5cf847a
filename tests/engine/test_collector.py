"""The garbage collector is as it was when a graph has been built, in threads, after errors and in forks."""

from __future__ import annotations

import gc
import threading

import pytest

from tests.patience import patience
from tests.robustness.processes import output_of
from vkml.engine.collector import collector_paused


def test_it_rests_within_and_works_again_behind() -> None:
    assert gc.isenabled()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_gives_it_back() -> None:
    with pytest.raises(ValueError, match="wrong"), collector_paused():
        raise ValueError("wrong")
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_several_threads_gives_it_back() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with collector_paused():
            entered.set()
            leave.wait(patience(30))

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(patience(30))
    with collector_paused():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join(patience(30))
    assert gc.isenabled()


def test_a_child_forked_meanwhile_collects() -> None:
    code = """
        import gc, os
        from vkml.engine.collector import collector_paused
        with collector_paused():
            child = os.fork()
            if not child:
                enabled = gc.isenabled()
                with collector_paused():
                    paused = not gc.isenabled()
                os._exit(0 if enabled and paused and gc.isenabled() else 1)
        print(os.waitpid(child, 0)[1])
    """
    assert output_of(code) == "0\n"
