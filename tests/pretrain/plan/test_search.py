"""The search: which ways there are, which of them are compiled, how they are ranked. Nothing is compiled here."""

import dataclasses
import math

import pytest

from pretrain.config import load
from pretrain.errors import UserError
from pretrain.plan import search, step
from pretrain.plan.estimates import Choice, Estimate, Estimates
from pretrain.plan.topology import Hardware, parse

CHIP = Hardware("cpu", "x", "8", memory=1e9, flops=1e12, bandwidth=1e11, link=1e10)


def topology(**changes):
    return dataclasses.replace(parse("cpu:8"), hardware=dataclasses.replace(CHIP, **changes))


def config():
    return load("configs/quickstart.py:tiny", [("train.batch_size", "16"), ("model.layers", "1")])


def test_meshes():
    found = list(search.meshes(8))
    assert len(set(found)) == len(found) == math.comb(3 + 3, 3) and all(math.prod(mesh) == 8 for mesh in found)


def test_candidates_divide():
    found = list(search.candidates(config(), 8))
    assert len(set(found)) == len(found)
    for choice in found:
        sizes = choice.sizes
        assert 2 % (sizes["tensor"] * sizes["sequence"]) == 0  # heads
        assert 16 % (choice.accumulate * sizes["data"] * sizes["fsdp"]) == 0
    assert Choice((1, 8, 1, 1), 2, "full") in found and Choice((1, 8, 1, 1), 4, "full") not in found


def test_a_choice_as_flags_is_the_choice():
    choice = Choice((2, 2, 1, 2), 4, "dots")
    keys = [tuple(word.removeprefix("--config.").split("=")) for word in choice.overrides()]
    told, applied = load("configs/quickstart.py:tiny", keys), choice.apply(load("configs/quickstart.py:tiny"))
    assert told == applied and told.mesh.tensor == 2 and told.model.remat == "dots"


@pytest.fixture(scope="module")
def estimates():
    return Estimates(config(), topology(), topology().devices())


def test_estimates_know_what_divides_what(estimates):
    found = estimates
    data, fsdp, tensor = (found.of(Choice(mesh, 1, "none")) for mesh in ((8, 1, 1, 1), (1, 8, 1, 1), (4, 1, 1, 2)))
    assert fsdp.held < tensor.held < data.held and data.held > 6 * fsdp.held
    assert fsdp.activations == data.activations > 0
    parts = found.of(Choice((8, 1, 1, 1), 2, "none"))
    assert parts.activations == data.activations / 2 and parts.seconds > data.seconds
    assert found.of(Choice((8, 1, 1, 1), 1, "full")).seconds > data.seconds


@pytest.fixture
def compiled(monkeypatch, estimates):
    """Stands in for the compiler: data parallelism is fastest, and takes `needs["data"]` bytes; anything else less."""
    needs, seen = {"data": 5e8, "other": 4e8}, []

    def plan(config, topology, devices):
        seen.append((config.mesh.data, config.mesh.fsdp, config.train.accumulate, config.model.remat))
        needed = needs["data" if config.mesh.data == 8 else "other"]
        capacity = topology.hardware.memory
        seconds = 1.0 if config.mesh.data == 8 else 2.0
        return {
            "memory": {
                "fits": needed <= capacity,
                "needed": needed,
                "capacity": capacity,
                "left": capacity - needed,
                "categories": {"parameters": needed},
            },
            "roofline": {"step_seconds": seconds, "apart_seconds": 3.0, "bound": "compute", "mfu": 0.5},
            "warnings": [],
        }

    monkeypatch.setattr(step, "plan", plan)
    monkeypatch.setattr(search, "Estimates", lambda *arguments: estimates)  # which take seconds to trace
    monkeypatch.setattr(search, "MAX_COMPILES", 6)
    return needs, seen


def test_the_fastest_that_fits_wins(compiled):
    said = []
    found = search.search(config(), topology(), said.append)
    assert found["tried"]["compiled"] == len(found["ranked"]) == len(compiled[1]) == 6
    assert found["best"][0] == "--config.mesh.data=8" and found["ranked"][0]["fits"]
    assert [message for message in said if "best so far" in message] == [f"the best so far: {' '.join(found['best'])}"]
    assert all(parts == 1 for *_, parts, _ in compiled[1])  # more of them are slower
    times = [row["step_seconds"] for row in found["ranked"]]
    assert times == sorted(times)


def test_the_first_that_is_compiled_is_the_surest_to_fit():
    """Where the fastest leaves little room: all devices in fsdp, every layer computed again."""
    ways = [
        (Estimate(30, 60, 1), Choice((8, 1, 1, 1), 1, "none")),
        (Estimate(20, 15, 2), Choice((1, 4, 1, 2), 1, "full")),
        (Estimate(10, 40, 3), Choice((1, 8, 1, 1), 1, "full")),
        (Estimate(10, 20, 4), Choice((1, 8, 1, 1), 2, "full")),
        (Estimate(10, 10, 5), Choice((1, 8, 1, 1), 4, "full")),
    ]
    chosen = [
        search._pick_next(ways, search.MemoryCorrections(), capacity, fitting=0, tried=0)
        for capacity in (1000, 100, 78, 10)
    ]
    assert chosen == [0, 4, 3, 4]
    assert search._pick_next(ways, search.MemoryCorrections(), 90, fitting=0, tried=1) == 2  # after a miss
    assert search._pick_next(ways, search.MemoryCorrections(), 70, fitting=1, tried=2) == 1  # after a fit: the fastest
    assert search._pick_next(ways[:2], search.MemoryCorrections(), 92, fitting=1, tried=2) == 1  # that leaves room,
    assert (
        search._pick_next(ways[:1], search.MemoryCorrections(), 92, fitting=1, tried=2) == 0
    )  # and then those that do not


def test_after_a_miss_estimates_are_scaled():
    corrections = search.MemoryCorrections()
    found = Estimate(held=10, activations=5, seconds=1)
    assert corrections.needed(found, "none") == 15
    corrections.add(found, "dots", needed=60, fits=False)
    assert corrections.needed(found, "dots") == corrections.needed(found, "none") == 60
    corrections.add(Estimate(10, 1, 1), "full", needed=25, fits=True)
    assert corrections.needed(Estimate(10, 1, 1), "full") == 25


def test_what_does_not_fit_comes_last_and_is_not_tried_again(compiled):
    needs, seen = compiled
    needs["data"] = 2e9
    found = search.search(config(), topology())
    assert [row["fits"] for row in found["ranked"]] == sorted((row["fits"] for row in found["ranked"]), reverse=True)
    assert found["best"][0] != "--config.mesh.data=8" and {8} < {data for data, *_ in seen}


def test_search_without_a_fit_names_the_nearest_choice(compiled):
    needs, _ = compiled
    needs.update(data=2e9, other=3e9)
    with pytest.raises(UserError, match="parameters"):
        search.search(config(), topology())
