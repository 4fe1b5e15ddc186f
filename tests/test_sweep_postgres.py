"""Do workers on a real PostgreSQL share one search: begun at the same moment, and one of them killed?"""

import time

import forked
import pytest

pytest.importorskip("optuna", reason="the extra [sweep] is not installed")
import postgres
from optuna.trial import TrialState
from sweep_workers import get_stuck, work

from esam.runs.sweep import Search, Sweep, shown
from esam.train import Config
from esam.train.record import read_records

TINY = Config(data="digits", model="mlp", method="base", train_size=100, batch_size=50, epochs=1, seed=100, threads=1)
SEARCH = Search(TINY, ("lr=0.01..0.2:log",), sampler="random", trials=4)

pytestmark = [
    pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing() or "never"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]


def test_workers_that_begin_at_once_share_a_search_and_do_again_what_one_lost_when_it_was_killed(tmp_path):
    environment = {"ESAM_CACHE": str(tmp_path / "cache")}
    with postgres.server() as url:
        stuck = forked.start(get_stuck, url, SEARCH, tmp_path / "runs", tmp_path / "sign", **environment)
        while not (tmp_path / "sign").exists():
            assert stuck.is_alive()
            time.sleep(0.02)
        stuck.kill()
        stuck.join()
        time.sleep(4)  # three heartbeats: it is known to be gone
        begin = time.time() + 0.5
        workers = [forked.start(work, url, SEARCH, tmp_path / "runs", begin, **environment) for _ in range(2)]
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0]
        sweep = Sweep(SEARCH, url)
        (lost,) = sweep.trials(TrialState.FAIL)
        done = sweep.best_first()
    assert SEARCH.trials <= len(done) <= SEARCH.trials + 1
    (again,) = [trial for trial in done if trial.user_attrs["run"] == lost.user_attrs["run"]]
    assert again.params == lost.params  # the same choice, in the same folder
    records = read_records(tmp_path / "runs")
    assert len(records) == len(done) and all(record.finished for record in records)


def test_an_address_without_a_server_is_told_without_its_password():
    away = "postgresql://me:secret@127.0.0.1:1/none"
    with pytest.raises(ValueError, match="cannot be reached") as error:
        Sweep(SEARCH, away)
    assert "secret" not in str(error.value) and "me:***@127.0.0.1" in shown(away)
