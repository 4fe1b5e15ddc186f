"""Do workers on a real PostgreSQL share one search: begun at the same moment, joined, and one of them killed?"""

import time

import forked
import pytest

pytest.importorskip("optuna", reason="the extra [sweep] is not installed")
import postgres
from optuna.trial import TrialState
from sweep_workers import create, get_stuck, work

from esam.runs.sweep import Search, SharedStudy, shown
from esam.train import Config
from esam.train.record import read_records

TINY = Config(data="digits", model="mlp", method="base", train_size=100, batch_size=50, epochs=1, seed=100, threads=1)
SEARCH = Search(TINY, ("lr=0.001..0.5:log",), sampler="random", trials=6, heartbeat=3)

pytestmark = [
    pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing() or "never"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]


@pytest.fixture(scope="module")
def url():
    with postgres.server() as address:
        yield address


def test_a_search_begun_twice_at_once_and_joined_by_two_ends_though_one_is_killed(url, tmp_path):
    begin = time.time() + 1
    twins = [forked.start(create, url, SEARCH, begin) for _ in range(2)]  # on an empty database
    for twin in twins:
        twin.join()
    assert [twin.exitcode for twin in twins] == [0, 0]
    study = SharedStudy.join(url)

    environment = {"ESAM_CACHE": str(tmp_path / "cache")}
    stuck = forked.start(get_stuck, url, tmp_path / "runs", tmp_path / "sign", **environment)
    while not (tmp_path / "sign").exists():
        assert stuck.is_alive()
        time.sleep(0.02)
    stuck.kill()
    stuck.join()
    workers = [forked.start(work, url, tmp_path / "runs", **environment) for _ in range(2)]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]

    (lost,) = study.trials(TrialState.FAIL)
    done = study.done()
    assert len(done) >= SEARCH.trials
    (retried,) = [trial for trial in done if trial.user_attrs["run"] == lost.user_attrs["run"]]
    assert retried.params == lost.params  # the same choice, in the same folder
    records = read_records(tmp_path / "runs")
    assert len(records) == len(done) and all(record.finished for record in records)


def test_an_address_without_a_server_is_told_without_its_password():
    away = "postgresql://me:secret@127.0.0.1:1/none"
    with pytest.raises(ValueError, match="cannot be reached") as error:
        SharedStudy.join(away)
    assert "secret" not in str(error.value) and "me:***@127.0.0.1" in shown(away)
    with pytest.raises(ValueError, match="cannot be reached"):
        SharedStudy.create(away, "search", SEARCH)
