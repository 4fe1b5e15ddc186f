"""A hundred and fifty faults: is each answered by what to do, without a traceback, and is nothing lost?"""

import re
from pathlib import Path

import pytest
from fault_catalogue import HEAD, SURROUNDINGS, line, outcome
from fault_page import CATALOGUE
from fault_place import Place

PAGE = (Path(__file__).parent.parent / "docs" / "faults.md").read_text()
EVERY = [
    pytest.param(fault, id=f"{category}: {fault.what}") for category, faults in CATALOGUE.items() for fault in faults
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SURROUNDINGS.items():
            patch.setenv(name, value)
        patch.setenv("ESAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("ESAM_DATA", raising=False)
        root = tmp_path_factory.mktemp("place")
        patch.chdir(root)
        patch.syspath_prepend(root)
        yield Place(root)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("fault", EVERY)
def test_a_fault_is_answered_by_what_to_do_and_costs_nothing(place, fault):
    found = outcome(fault, place)
    assert found.code == fault.code, found.message
    assert fault.says in found.message or re.search(fault.says, found.message), found.message
    assert "Traceback" not in found.message and fault.never not in found.message + found.printed
    assert place.contents() == place.kept, "something was lost or changed"
    assert fault.leaves or not place.out.exists(), "it began to work before it refused"
    assert line(fault, found) in PAGE, "run make docs"


def test_the_page_has_every_fault_and_no_other():
    faults = [fault for faults in CATALOGUE.values() for fault in faults]
    assert len(faults) >= 150
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and row not in HEAD.splitlines()]
    assert len(rows) == len(faults)
