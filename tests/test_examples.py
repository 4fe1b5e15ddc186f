"""The examples run as they stand, in a few steps each: smoke tests, with a bar that only a broken step would miss."""

import importlib.util
import math
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def test_the_digits_are_recognised_after_two_epochs():
    assert example("image_classification")(epochs=2) > 0.8  # chance is 0.1


def test_texts_in_dicts_are_read_as_well_as_by_chance_at_least():
    assert example("text_classification")(steps=10) > 0.4  # chance is 0.5, of 500 texts


def test_the_language_model_gets_below_the_loss_of_knowing_nothing():
    assert example("language_model")(steps=10) < math.log(256)


@pytest.mark.parametrize("method", ["base", "sam"])
def test_the_regression_beats_the_mean_of_the_targets(method):
    assert example("tabular_regression")(method, epochs=10) < 1.0


def test_an_attack_lowers_the_accuracy_and_does_not_take_it_all():
    clean, robust = example("adversarial_weights")(epochs=2)
    assert clean > robust > 0.2  # chance is 0.1


def test_two_optimizers_of_a_gan_do_not_disturb_one_another():
    assert math.isfinite(example("gan")(steps=10))


def test_muon_with_its_own_geometry_learns():
    first, last = example("muon")()
    assert last < 0.8 * first


def test_every_example_has_a_test_is_in_the_docs_and_can_be_read_on_one_screen():
    tests, page = Path(__file__).read_text(), (ROOT / "docs" / "loops.md").read_text()
    for path in EXAMPLES:
        assert f'example("{path.stem}")' in tests and f"examples/{path.name}" in page
        assert len(path.read_text().splitlines()) < 80, path
