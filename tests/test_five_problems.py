"""Does no method lose more than a point to the base by its defaults, unless it is said why?"""

from pathlib import Path

import five_problems
import pytest

from esam.runs.plan import DEFAULT_METHODS


@pytest.mark.parametrize("name", five_problems.PROBLEMS)
def test_no_method_is_more_than_a_point_under_the_base_without_a_warning_that_says_why(name):
    found = five_problems.judged(name)
    assert set(DEFAULT_METHODS) <= {one.method for one, _ in found}
    for one, warning in found:
        assert one.n == len(five_problems.SEEDS) or warning, one.name
        if one.accuracy is None or (one.gain is not None and one.gain.clear and one.gain.value < -1):
            assert warning in ("diverged", "under-fits", "behind"), one.name


def test_the_committed_runs_are_those_of_the_script_and_tell_what_they_were_made_of():
    for name, (_, config) in five_problems.PROBLEMS.items():
        for record in five_problems.kept_records(name):
            for key in ("model", "epochs", "batch_size", "lr", "optimizer", "train_size"):
                assert record.config[key] == getattr(config, key), (name, key)
            assert record.config["settings"] == {} and record.data["train"] > 0 and record.run["environment"]["torch"]
        text = (five_problems.RESULTS / f"{name}.json").read_text()
        assert len(text) < 100_000 and str(Path.home()) not in text


def test_the_table_is_what_its_title_says():
    task = five_problems.table()
    assert len(task.train[1]) == 285 and task.train[0].shape[1] == 30
    assert abs(float(task.train[0].mean())) < 1e-5
