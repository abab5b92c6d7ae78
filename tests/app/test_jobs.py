from kareus.store import PartitionProgress
from tests.app.conftest import Opener, parameter, words
from tests.app.fake import FakeService


def test_without_jobs_the_page_leads_on(fake: FakeService, open_page: Opener) -> None:
    page = open_page("jobs")
    assert not page.exception
    assert page.button(key="example")


def test_a_running_job_shows_progress_and_can_be_cancelled(
    fake: FakeService, open_page: Opener
) -> None:
    fake.add_study("s1", state="running")
    fake.add_job()
    page = open_page("jobs")
    assert "Measuring: 240 of 448, about 12" in words(page)
    table = page.dataframe[0].value
    assert list(table["partition"]) == ["fwd_attn", "fwd_mlp"]
    assert list(table["measurements"]) == ["120 of 224"] * 2
    page.button(key="cancel").click().run()
    assert fake.cancelled == ["j-s1"]
    assert "Cancelled after 240 of 448" in words(page)


def test_a_failed_job_says_why_and_can_be_resumed(fake: FakeService, open_page: Opener) -> None:
    fake.add_job(state="failed", finished=True, error="the disk is full: free some space")
    page = open_page("jobs")
    assert "the disk is full" in page.error[0].value
    page.button(key="resume").click().run()
    assert fake.resumed == ["j-s1"]
    assert "Measuring" in words(page)


def test_what_cannot_be_cancelled_any_more_says_so(fake: FakeService, open_page: Opener) -> None:
    fake.add_job()
    page = open_page("jobs")
    button = page.button(key="cancel")
    fake.add_job(state="done", finished=True)
    button.click().run()
    assert "already ended" in words(page)


def test_a_finished_job_leads_to_its_frontier(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s0")
    fake.add_study("s1")
    fake.add_job(study="s0", state="done", finished=True)
    page = open_page("jobs")
    page.button(key="see_frontier").click().run()
    assert "runs an iteration in" in words(page)
    assert parameter(page, "study") == "s0"


def test_the_url_names_the_job(fake: FakeService, open_page: Opener) -> None:
    fake.add_job("j-a", study="sa")
    fake.add_job("j-b", study="sb", state="done", finished=True, measurements=7)
    page = open_page("jobs", job="j-b")
    assert "Finished with 7 measurements" in words(page)


def test_without_a_name_the_newest_job_is_open(fake: FakeService, open_page: Opener) -> None:
    fake.add_job("j-a", study="sa")
    fake.add_job("j-b", study=None, exploration="e1", name="sixteen GPUs")
    assert "Measuring: 240 of 448" in words(open_page("jobs"))


def test_an_unknown_job_is_named_and_another_shown(fake: FakeService, open_page: Opener) -> None:
    fake.add_job()
    page = open_page("jobs", job="nonsense")
    assert "nonsense" in page.error[0].value
    assert "Measuring" in words(page)


def test_phases_after_measuring_have_words(fake: FakeService, open_page: Opener) -> None:
    fake.add_job(phase="solving")
    assert "Planning iterations" in words(open_page("jobs"))
    fake.add_job(state="queued", phase=None, planned=None, started=None, partitions=())
    page = open_page("jobs")
    assert "Waiting" in words(page)
    assert not page.exception


def test_the_log_is_read_only_when_shown(fake: FakeService, open_page: Opener) -> None:
    fake.add_job()
    page = open_page("jobs")
    assert not page.code
    page.toggle(key="show_log").set_value(True).run()
    assert "measuring fwd_attn" in page.code[0].value


def test_an_exploration_counts_layouts_and_leads_to_its_page(
    fake: FakeService, open_page: Opener
) -> None:
    layouts = tuple(
        PartitionProgress(name=f"tp8 cp1 pp{number}", done=done, planned=2)
        for number, done in enumerate((2, 1, 0), start=1)
    )
    changes = {"study": None, "exploration": "e1", "partitions": layouts, "measurements": 0}
    fake.add_job(planned=6, name="sixteen GPUs", **changes)
    page = open_page("jobs")
    said = words(page)
    assert "Exploring: 1 of 3 layouts decided" in said
    assert "measurements" not in said
    assert "sixteen GPUs · job" in said
    table = page.dataframe[0].value
    assert list(table["layout"]) == ["tp8 cp1 pp2", "tp8 cp1 pp3", "tp8 cp1 pp1"]
    assert list(table["state"]) == ["its baselines are planned", "waiting", "decided"]
    fake.add_job(state="failed", finished=True, planned=6, name="sixteen GPUs", **changes)
    assert "Failed after 1 of 3 layouts" in words(open_page("jobs"))


def test_a_job_whose_study_was_deleted_says_so(fake: FakeService, open_page: Opener) -> None:
    fake.add_job(
        state="failed",
        finished=True,
        study=None,
        name=None,
        planned=None,
        partitions=(),
        error="power cap 50 W cannot be met: raise it",
    )
    page = open_page("jobs")
    assert "Failed; what it worked on has been deleted" in words(page)
    assert "power cap 50 W" in page.error[0].value
    assert not [button for button in page.button if button.key == "resume"]
    assert not page.dataframe


def test_a_failure_after_measuring_does_not_count_twice(
    fake: FakeService, open_page: Opener
) -> None:
    fake.add_job(state="failed", finished=True, measurements=448, error="no plan: raise the cap")
    assert "Failed after all 448 measurements" in words(open_page("jobs"))
