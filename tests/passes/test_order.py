"""The order kept while edges are added: never a cycle, no edge refused without need, bounded work."""

from __future__ import annotations

import random

import pytest

from tests.counting import lines_run
from vkml.passes.order import AcyclicOrder


def reaches(edges: set[tuple[int, int]], start: int, goal: int) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        at = waiting.pop()
        fresh = {target for source, target in edges if source == at} - seen
        seen |= fresh
        waiting.extend(fresh)
    return goal in seen


@pytest.mark.parametrize("seed", range(100))
def test_edges_are_refused_where_they_close_a_cycle_and_only_there(seed: int) -> None:
    choose = random.Random(seed)
    order = AcyclicOrder(10**6)
    edges: set[tuple[int, int]] = set()
    count = 0
    for _ in range(choose.randint(1, 60)):
        if count < 2 or choose.random() < 0.4:
            needs = set(choose.sample(range(count), choose.randint(0, min(count, 3))))
            assert order.add(needs) == count
            edges |= {(need, count) for need in needs}
            count += 1
            continue
        vertex = choose.randrange(count)
        needs = set(choose.sample(range(count), choose.randint(1, min(count, 3)))) - {vertex}
        closes = any(reaches(edges, vertex, need) for need in needs)
        assert order.connect(needs, vertex) is not closes
        if not closes:
            edges |= {(need, vertex) for need in needs}


def test_without_budget_only_edges_that_agree_with_the_order_are_taken() -> None:
    order = AcyclicOrder(0)
    first, second = order.add(()), order.add(())
    third = order.add([second])
    assert order.connect([first], third)
    assert not order.connect([third], first)


def test_searches_stay_within_the_budget() -> None:
    """A long chain behind each of many late edges: all searches together follow no more edges than stated."""

    def build(budget: int) -> None:
        order = AcyclicOrder(budget)
        early = [order.add(()) for _ in range(200)]
        late = order.add(())
        for _ in range(2000):
            late = order.add([late])
        for vertex in early:
            order.connect([late], vertex)

    assert lines_run(build, 1000) < lines_run(build, 0) + 20 * 1000
