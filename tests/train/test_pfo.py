"""The exported frequency file, served by the real Zeus server."""

import itertools
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from kareus.errors import ConfigError, ScheduleError
from kareus.schedule.formats import frequency_file_name
from kareus.train.launcher import launch
from kareus.train.log import read_log
from kareus.train.pfo import PfoServer, match_clocks
from kareus.train.settings import TrainingSettings
from tests.train.pfo_server import running_server, server_python
from tests.train.sample import make_bundle, make_schedule, make_workload

# Only the virtual shape counts here: 2 stages x (2 dp x 2 cp x 2 tp) simulated ranks.
WORKLOAD = make_workload(pp=2, dp=2, cp=2, tp=2)


@pytest.fixture(scope="session")
def pfo_python():
    return server_python()


def frequency_file(bundle, folder):
    """The bundle's own frequency file, unpacked."""
    name = frequency_file_name(make_schedule(WORKLOAD).plan)
    with zipfile.ZipFile(bundle) as archive:
        return archive.extract(name, folder)


def test_the_real_server_hands_out_exactly_the_planned_clocks(tmp_path, pfo_python):
    schedule = make_schedule(WORKLOAD)
    solution = frequency_file(make_bundle(tmp_path, WORKLOAD), tmp_path)
    ranks = list(itertools.product(range(2), range(2), range(4)))  # stage, replica, tp x cp
    with running_server(pfo_python, solution, tmp_path) as url:
        server = PfoServer(url=url)
        server.check()
        job = server.register_job(pp=2, dp=2, tp_cp=4, metadata="test")
        for rank, (pp, dp, tp_cp) in enumerate(ranks):
            server.register_rank(
                job, rank=rank, dp=dp, pp=pp, tp_cp=tp_cp, clocks_mhz=WORKLOAD.gpu.clocks_mhz
            )
        with ThreadPoolExecutor(len(ranks)) as pool:  # it answers once every rank has asked
            served = list(pool.map(lambda rank: server.schedule(job, rank=rank), range(len(ranks))))
        with pytest.raises(ConfigError, match="was refused with status 422"):
            server.register_job(pp=0, dp=1, tp_cp=1)
    for (stage, _, _), clocks in zip(ranks, served, strict=True):
        planned = schedule.stages[stage].instructions
        assert clocks == [(i.direction.value, i.clock_mhz) for i in planned]
        assert match_clocks(clocks, schedule, stage, url) == tuple(i.clock_mhz for i in planned)


def test_training_takes_its_clocks_from_the_server(tmp_path, pfo_python):
    workload = make_workload(pp=2, num_microbatches=4)
    bundle = make_bundle(tmp_path, workload)
    with zipfile.ZipFile(bundle) as archive:
        name = frequency_file_name(3)
        text = archive.read(name).decode()
    # Other clocks than the bundle's, to tell whose are used.
    solution = tmp_path / name
    solution.write_text(re.sub(r"\b900\b", "930", text))
    with running_server(pfo_python, solution, tmp_path) as url:
        report = launch(
            TrainingSettings(
                bundle=bundle, log=tmp_path / "log", device="cpu", steps=2, pfo_url=url, threads=1
            )
        )
    assert report.schedule_followed is True, report.mismatches
    for log in read_log(report.log):
        planned = make_schedule(workload).stages[log.info.stage].instructions
        wanted = [930 if i.clock_mhz == 900 else i.clock_mhz for i in planned]
        assert 930 in wanted
        assert [i.clock_mhz for i in log.steps[-1].instructions] == wanted


def test_a_schedule_for_other_instructions_is_refused():
    schedule = make_schedule(make_workload(pp=2))
    clocks = [(i.direction.value, i.clock_mhz) for i in schedule.stages[0].instructions]
    with pytest.raises(ScheduleError, match="serves 3 instructions, the bundle has 8"):
        match_clocks(clocks[:3], schedule, 0, "here")
    swapped = [clocks[2], *clocks[1:2], clocks[0], *clocks[3:]]
    with pytest.raises(
        ScheduleError,
        match=r"here, stage 0, position 0: serves a backward, the bundle has a forward",
    ):
        match_clocks(swapped, schedule, 0, "here")
