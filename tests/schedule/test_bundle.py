import io
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kareus.core.partition import Execution
from kareus.core.workload import Recompute
from kareus.errors import ScheduleError
from kareus.schedule import bundle as bundle_module
from kareus.schedule.bundle import bundle_bytes, bundle_files, read_bundle, write_bundle
from kareus.schedule.formats import parse_launches
from tests.schedule.sample import make_plan, make_schedule, make_workload

FILES = {
    "schedule.json",
    "freqs_pipeline_00014.py",
    "scheds_pipeline_00014.py",
    "launch.sh",
    "launch.sbatch",
    "timeline.json",
    "README.md",
    "manifest.json",
}


@pytest.mark.parametrize("name", ["plan", "plan.zip", "deep/er/plan"])
def test_a_bundle_reads_back(tmp_path, name):
    schedule = make_schedule()
    path = write_bundle(tmp_path / name, schedule)
    assert read_bundle(path) == schedule
    # Nothing is left beside it.
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("recompute", Recompute)
@pytest.mark.parametrize("cp", [1, 2])
def test_every_layout_reads_back(tmp_path, recompute, cp):
    workload = make_workload(tp=4, cp=cp, num_microbatches=3, recompute=recompute)
    schedule = make_schedule(workload)
    assert read_bundle(write_bundle(tmp_path / "b", schedule)) == schedule


def test_sequential_instructions_are_not_overlapped_throughout(tmp_path):
    workload = make_workload()
    schedule = make_schedule(workload, make_plan(workload, execution=Execution.SEQUENTIAL))
    path = write_bundle(tmp_path / "b", schedule)
    text = (path / "scheds_pipeline_00000.py").read_text()
    entries = {
        str(entry)
        for stage in parse_launches(text, "s").launches
        for _, entries in stage
        for entry in entries
    }
    assert entries == {"none-none-20-1024"}
    assert read_bundle(path) == schedule


def test_zip_is_the_same_bytes_and_holds_every_file():
    schedule = make_schedule()
    data = bundle_bytes(schedule)
    assert data == bundle_bytes(make_schedule())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert set(archive.namelist()) == FILES
        assert archive.getinfo("launch.sh").external_attr >> 16 & 0o111
        assert archive.getinfo("README.md").date_time == (1980, 1, 1, 0, 0, 0)


def test_nothing_is_replaced_unasked(tmp_path):
    schedule = make_schedule()
    folder = tmp_path / "b"
    folder.mkdir()
    write_bundle(folder, schedule)  # an empty folder is fine
    with pytest.raises(ScheduleError, match="not empty"):
        write_bundle(folder, schedule)
    other = make_schedule(plan=make_plan(make_workload(), number=15))
    assert read_bundle(write_bundle(folder, other, overwrite=True)).plan == 15
    assert not (folder / "freqs_pipeline_00014.py").exists()
    archive = write_bundle(tmp_path / "b.zip", schedule)
    with pytest.raises(ScheduleError, match="exists already"):
        write_bundle(archive, schedule)
    assert read_bundle(write_bundle(archive, other, overwrite=True)).plan == 15


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("ten years of work")
    with pytest.raises(ScheduleError, match="something else than a bundle"):
        write_bundle(tmp_path, make_schedule(), overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("name", ["b", "b.zip"])
def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch, name):
    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(bundle_module.Path, "chmod", fail)
    with pytest.raises(ScheduleError, match="cannot be written"):
        write_bundle(tmp_path / name, make_schedule())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(FILES - {"manifest.json"}))
def test_every_altered_or_missing_file_is_named(tmp_path, name):
    path = write_bundle(tmp_path / "b", make_schedule())
    (path / name).write_bytes((path / name).read_bytes() + b" ")
    with pytest.raises(ScheduleError, match=f"{name} was altered"):
        read_bundle(path)
    (path / name).unlink()
    with pytest.raises(ScheduleError, match=f"{name} is missing"):
        read_bundle(path)


def test_other_files_in_the_folder_do_no_harm(tmp_path):
    path = write_bundle(tmp_path / "b", make_schedule())
    (path / "log").mkdir()
    (path / "notes.txt").write_text("ours")
    assert read_bundle(path) == make_schedule()


def rewritten(files, change):
    """A .zip of the files after a change, its manifest made to fit again."""
    files = dict(files)
    change(files)
    manifest = json.loads(files["manifest.json"])
    for name in manifest["files"]:
        data = files[name]
        manifest["files"][name] = {
            "sha256": bundle_module.hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
        }
    files["manifest.json"] = json.dumps(manifest).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        (
            "freqs_pipeline_00014.py",
            b"('backward', 1410)",
            b"('backward', 1380)",
            "stage 0, position 2: backward at 1380 MHz where schedule.json has",
        ),
        (
            "scheds_pipeline_00014.py",
            b"norm_0-none-3-",
            b"norm_0-none-6-",
            "stage 0, position 0: forward norm_0-none-6-1024",
        ),
        ("freqs_pipeline_00014.py", b"[", b"print([", "not a Python list literal"),
        ("schedule.json", b'"clock_mhz": 1410', b'"clock_mhz": 1380', "checksum"),
    ],
)
def test_parts_that_disagree_are_refused(tmp_path, name, old, new, words):
    def change(files):
        files[name] = files[name].replace(old, new, 1)

    path = tmp_path / "b.zip"
    path.write_bytes(rewritten(bundle_files(make_schedule()), change))
    with pytest.raises(ScheduleError) as caught:
        read_bundle(path)
    assert words in str(caught.value)


def test_archives_of_a_folder_are_read(tmp_path):
    folder = write_bundle(tmp_path / "plan", make_schedule())
    made = shutil.make_archive(str(tmp_path / "again"), "zip", tmp_path, folder.name)
    assert read_bundle(tmp_path / made) == make_schedule()


@pytest.mark.parametrize("evil", ["../launch.sh", "/etc/passwd", "a/../../b", "..\\b"])
def test_paths_out_of_the_archive_are_refused(tmp_path, evil):
    path = tmp_path / "b.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(evil, b"x")
    with pytest.raises(ScheduleError, match="points outside the bundle"):
        read_bundle(path)


def test_huge_members_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle_module, "MAX_FILE_BYTES", 1000)
    path = write_bundle(tmp_path / "b.zip", make_schedule())
    with pytest.raises(ScheduleError, match="is larger than"):
        read_bundle(path)
    folder = write_bundle(tmp_path / "b", make_schedule())
    with pytest.raises(ScheduleError, match="larger than"):
        read_bundle(folder)


def test_what_is_no_bundle(tmp_path):
    with pytest.raises(ScheduleError, match="no such bundle"):
        read_bundle(tmp_path / "nothing")
    (tmp_path / "b.zip").write_bytes(b"not a zip")
    with pytest.raises(ScheduleError, match=r"not a readable \.zip"):
        read_bundle(tmp_path / "b.zip")
    with pytest.raises(ScheduleError, match=r"manifest\.json is missing"):
        read_bundle(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(ScheduleError, match=r"manifest\.json is not one of a bundle"):
        read_bundle(tmp_path)
    (tmp_path / "manifest.json").write_text(
        '{"format": "kareus-bundle", "version": 1, "files": {"../x": {"sha256": "", "bytes": 0}}}'
    )
    with pytest.raises(ScheduleError, match="outside the bundle"):
        read_bundle(tmp_path)


def test_launch_sh_hands_its_folder_and_arguments_to_kareus(tmp_path):
    path = write_bundle(tmp_path / "b", make_schedule())
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "kareus").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tools / "kareus").chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin"}
    run = subprocess.run(
        [path / "launch.sh", "--steps", "5"], env=environment, capture_output=True, text=True
    )
    assert run.stdout.split() == ["launch", str(path), "--device", "cuda", "--steps", "5"]
    environment |= {"NNODES": "2", "NODE_RANK": "1", "RDZV_ENDPOINT": "n0:29500"}
    run = subprocess.run([path / "launch.sh"], env=environment, capture_output=True, text=True)
    assert "--nnodes 2 --node-rank 1 --rdzv-endpoint n0:29500" in " ".join(run.stdout.split())
    run = subprocess.run(
        ["/bin/bash", path / "launch.sh"], env={"PATH": "/usr/bin:/bin"}, capture_output=True
    )
    assert run.returncode == 127
    assert b"not on the PATH" in run.stderr


def test_launch_sbatch_starts_one_task_per_node(tmp_path):
    path = write_bundle(tmp_path / "b", make_schedule())
    text = (path / "launch.sbatch").read_text()
    assert "#SBATCH --nodes=2" in text
    assert "#SBATCH --gpus-per-node=8" in text
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, body in {
        "scontrol": "printf 'n0\\nn1\\n'",
        "srun": 'SLURM_NODEID=1 exec "$@"',
        "kareus": 'printf "%s\\n" "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    run = subprocess.run(
        ["bash", path / "launch.sbatch", "--steps", "5"],
        env={
            "PATH": f"{tools}:/usr/bin:/bin",
            "SLURM_SUBMIT_DIR": str(path),
            "SLURM_JOB_NODELIST": "n[0-1]",
            "SLURM_NNODES": "2",
        },
        capture_output=True,
        text=True,
    )
    assert " ".join(run.stdout.split()) == (
        f"launch {path} --device cuda --nnodes 2 --node-rank 1 --rdzv-endpoint n0:29500 --steps 5"
    )


def test_scripts_are_clean(tmp_path):
    path = write_bundle(tmp_path / "b", make_schedule())
    run = subprocess.run(
        [
            Path(sys.executable).with_name("shellcheck"),
            path / "launch.sh",
            path / "launch.sbatch",
        ],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout


def test_readme_says_how_to_register_with_zeus(tmp_path):
    workload = make_workload(tp=4, cp=2, dp=2)
    text = bundle_files(make_schedule(workload))["README.md"].decode()
    assert "PointSolution3D" in text
    assert "tp_degree = 8" in text
    assert "--global-batch-size 64" in text
    for name in FILES - {"README.md"}:
        assert name in text


def test_a_zeus_server_loads_the_clocks(tmp_path):
    scheduler = pytest.importorskip("zeus.optimizer.pipeline_frequency.server.scheduler")
    common = pytest.importorskip("zeus.optimizer.pipeline_frequency.common")
    path = write_bundle(tmp_path / "b", make_schedule())
    ranks = [
        common.RankInfo(rank=r, dp_rank=0, pp_rank=r // 8, tp_rank=r % 8, available_frequencies=[])
        for r in range(16)
    ]
    job = common.JobInfo(pp_degree=2, dp_degree=1, tp_degree=8, world_size=16)
    solution = scheduler.PointSolution3D(
        job, ranks, None, solution_path=str(path / "freqs_pipeline_00014.py")
    )
    schedules = solution.next_schedule()
    assert len(schedules) == 16
    assert schedules[15].frequencies[:2] == [("forward", 1410), ("backward", 1410)]
