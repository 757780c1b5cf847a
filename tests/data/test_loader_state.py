"""Loaders that go on in the middle of an epoch, from a state, also one from a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vkml
from vkml import nn, optim
from vkml.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_stream,
)


class Noisy(Dataset[Any]):
    """Items with random numbers, of which some cannot be loaded."""

    def __init__(self, wrong: tuple[int, ...] = ()) -> None:
        self.wrong = wrong

    def __len__(self) -> int:
        return 17

    def __getitem__(self, index: int) -> Any:
        if index in self.wrong:
            raise OSError(f"no item {index}")
        return index, random_stream().word()


class Counted(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in range(17):
            yield number, random_stream().word()


class Torn(IterableDataset[Any]):
    """That goes on behind items that cannot be loaded."""

    def __iter__(self) -> Iterator[Any]:
        class Items:
            at = -1

            def __next__(self) -> Any:
                self.at += 1
                if self.at in (2, 3, 9):
                    raise OSError(f"no item {self.at}")
                if self.at > 16:
                    raise StopIteration
                return self.at, random_stream().word()

        return Items()  # type: ignore[return-value]


class Positioned(IterableDataset[Any]):
    """That goes on where it was without going through what has been."""

    def __init__(self) -> None:
        self.at = 0
        self.made = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 17:
            self.at, self.made = self.at + 1, self.made + 1
            yield self.at - 1, random_stream().word()
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def of(batches: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in batches]


def seeded(seed: int) -> Any:
    return vkml.Generator().manual_seed(seed)


MAKERS: dict[str, Any] = {
    "in order": lambda **o: DataLoader(Noisy(), 4, generator=seeded(1), **o),
    "shuffled": lambda **o: DataLoader(Noisy(), 4, True, **o),
    "once": lambda **o: DataLoader(Noisy(), 4, True, order="once", **o),
    "left out": lambda **o: DataLoader(Noisy((0, 3, 11, 12, 13)), 3, True, errors="skip", **o),
    "sampler": lambda **o: DataLoader(Noisy(), 4, sampler=RandomSampler(range(17)), **o),
    "with generator": lambda **o: DataLoader(
        Noisy(), 4, sampler=SubsetRandomSampler(range(3, 17), generator=seeded(4)), **o
    ),
    "batch sampler": lambda **o: DataLoader(
        Noisy(), batch_sampler=BatchSampler(WeightedRandomSampler([1] * 17, 17), 4, True), **o
    ),
    "one by one": lambda **o: DataLoader(
        Noisy(), None, True, collate_fn=lambda item: [vkml.tensor(item)], **o
    ),
    "iterable": lambda **o: DataLoader(Counted(), 4, **o),
    "torn": lambda **o: DataLoader(Torn(), 4, errors="skip", **o),
    "positioned": lambda **o: DataLoader(Positioned(), 4, **o),
}


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_the_batches_that_would_have_come(name: str, workers: int, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    make, options = MAKERS[name], {"num_workers": workers} if workers else {}
    vkml.manual_seed(11)
    loader = make(**options)
    wanted: list[Any] = []
    states = [loader.state_dict()]
    for _ in range(2):
        for batch in loader:
            wanted.append(of([batch])[0])
            states.append(loader.state_dict())
    skipped = list(loader.skipped)
    for taken in (0, 1, 3, len(wanted) // 2, len(wanted) - 1, len(wanted)):
        file = tmp_path / "loader.safetensors"
        vkml.save({"loader": states[taken], "rng": vkml.get_rng_state()}, file)
        vkml.manual_seed(taken)  # another process, which has drawn otherwise
        vkml.rand(3).numpy()
        other = make(**options)
        list(other)
        other.load_state_dict(vkml.load(file)["loader"])
        found = []
        while len(found) < len(wanted) - taken:
            found.extend(of(other))
        if name in ("sampler", "batch sampler"):  # whose later epochs are the CPU's generator's
            found = found[: len(wanted) // 2 - taken]
            assert found == wanted[taken : taken + len(found)]
            continue
        assert found == wanted[taken:]
        assert other.epoch == (loader.epoch if taken < len(wanted) else 1)
        assert other.skipped == skipped


def test_what_has_been_is_not_loaded_again() -> None:
    class Watched(Noisy):
        seen: list[int] = []

        def __getitem__(self, index: int) -> Any:
            self.seen.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Watched(), 4)
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    Watched.seen.clear()
    again = DataLoader(Watched(), 4)
    again.load_state_dict(state)
    list(again)
    assert Watched.seen == list(range(8, 17))
    source = Positioned()
    begun = DataLoader(source, 4)
    next(iter(begun))
    other = Positioned()
    resumed = DataLoader(other, 4)
    resumed.load_state_dict(begun.state_dict())
    list(resumed)
    assert other.made == 13


def test_an_epoch_that_was_left_is_followed_by_the_next() -> None:
    wanted = DataLoader(Noisy(), 4, True, generator=seeded(1))
    epochs = [of(wanted) for _ in range(3)]
    loader = DataLoader(Noisy(), 4, True, generator=seeded(1))
    next(iter(loader))
    assert loader.epoch == 0
    assert of(loader) == epochs[1] and loader.epoch == 2
    early = iter(loader)
    assert of(loader) and loader.epoch == 4
    assert of(early) == epochs[2]  # which goes on, and changes nothing of the loader's
    assert loader.epoch == 4 and loader.state_dict()["position"] == 0


def test_a_whole_training_in_one_file(tmp_path: Path) -> None:
    """Model, optimizer, schedule, random numbers and loader: the same weights, bit for bit."""
    pytest.importorskip("safetensors")
    vkml.manual_seed(5)
    x = vkml.randn(40, 3)
    data = [(x[at].numpy(), float(at % 2)) for at in range(40)]

    class Training:
        def __init__(self) -> None:
            self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))
            self.optimizer = optim.Adam(self.model.parameters(), lr=0.01)
            self.schedule = optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
            self.loader = DataLoader(data, 6, shuffle=True, num_workers=2)  # type: ignore[arg-type]

        def run(self, batches: Iterator[Any], count: int) -> None:
            for points, which in itertools.islice(batches, count):
                self.optimizer.zero_grad()
                loss = ((self.model(points).squeeze(1) - which.float()) ** 2).mean()
                loss.backward()
                self.optimizer.step()
                self.schedule.step()

        def batches(self) -> Iterator[Any]:
            while True:
                yield from self.loader

        def parts(self) -> dict[str, Any]:
            return {
                "model": self.model,
                "optimizer": self.optimizer,
                "schedule": self.schedule,
                "loader": self.loader,
            }

    whole = Training()
    batches = whole.batches()
    whole.run(batches, 9)
    state = {name: part.state_dict() for name, part in whole.parts().items()}
    vkml.save({**state, "rng": vkml.get_rng_state()}, tmp_path / "whole.safetensors")
    whole.run(batches, 8)
    vkml.manual_seed(99)
    other = Training()
    other.run(other.batches(), 2)
    found = vkml.load(tmp_path / "whole.safetensors")
    vkml.set_rng_state(found.pop("rng"))
    for name, part in other.parts().items():
        part.load_state_dict(found[name])
    other.run(other.batches(), 8)
    for one, same in zip(whole.model.parameters(), other.model.parameters(), strict=True):
        assert one.detach().numpy().tobytes() == same.detach().numpy().tobytes()


def test_what_is_no_state() -> None:
    with pytest.raises(ValueError, match="no state of a DataLoader"):
        DataLoader(Noisy()).load_state_dict({"epoch": 1})
