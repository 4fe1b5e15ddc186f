"""The bench of compiled steps: does it resume, leave compiling out of the times, and compile nothing after warm-up?"""

import json

import compile as compile_bench
import pytest
import torch._dynamo

from esam.bench.config import Bench

NAMES = ("base", "sam", "esam", "slicesam")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_rounds_are_kept_and_a_later_call_goes_on_from_them(tmp_path):
    path = tmp_path / "compile-mlp.json"

    def measured(rounds, names=NAMES):
        bench = Bench(model="mlp", batch_size=16, size=8, rounds=rounds)
        return compile_bench.measure(bench, names, path, backend="eager")

    first = measured(1)
    again = measured(2)
    assert again["rounds"] == 2
    for name in NAMES:
        assert again["contenders"][name]["graphs"] == 0
        for way in compile_bench.WAYS:
            times = again["contenders"][name]["seconds"][way]
            assert times[:1] == first["contenders"][name]["seconds"][way] and len(times) == 2
    assert again["contenders"]["base"]["of base"] == {"eager": 1.0, "compiled": 1.0}
    assert [row[0] for row in compile_bench.sheet(again).rows] == list(NAMES)
    before = path.read_bytes()
    assert measured(2) == json.loads(before) and path.read_bytes() == before  # nothing left to do
    with pytest.raises(SystemExit, match="holds another measurement"):
        measured(2, NAMES[:2])
