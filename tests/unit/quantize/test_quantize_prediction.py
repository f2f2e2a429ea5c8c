"""What a dry run predicts: the bytes of the real run, times that follow from them, the room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hy3.checkpoint.file_hash import FileHash
from hy3.errors import EnvironmentFault
from hy3.quantize.output_folder import OutputFolder
from hy3.quantize.pipeline import quantize
from hy3.quantize.prediction import Prediction, Term, predict
from hy3.quantize.resume import FinishedShard, stamp_of
from support.quantizing import no_progress, plan_of
from support.real_models import HY3
from support.sparse import write_sparse


def by_name(prediction: Prediction) -> dict[str, Term]:
    return {term.name: term for _, term in prediction.terms()}


def test_times_follow_from_bytes_and_rates():
    compute = (Term("copy", 30, 3.0, 5.0), Term("nvfp4", 80, 4.0, 8.0))
    read, write = Term("source", 110, 5.5, 0.75), Term("output", 60, 6.0, 1.25)
    found = Prediction(2, read, "SRC", compute, write, free_bytes=59)
    assert found.seconds_by_activity == {"read": 5.5, "compute": 8.0, "write": 6.0}
    assert (found.bound_by, found.overlapped_seconds, found.serial_seconds) == ("compute", 8, 19.5)
    assert found.cpu_seconds == 15 and found.disk_work_seconds == 1
    alone = sum(term.seconds for _, term in found.terms())
    assert alone + found.disk_work_seconds == found.serial_seconds
    assert not found.fits
    result = found.as_json()
    assert result["seconds_by_activity"] == found.seconds_by_activity
    assert [term["activity"] for term in result["terms"]] == ["read", "compute", "compute", "write"]
    assert [term["bytes_per_s"] for term in result["terms"]] == [20, 10, 20, 10]
    assert (result["needed_bytes"], result["free_bytes"]) == (60, 59)


def test_bytes_are_those_of_the_run(source, tmp_path):
    plan, out = plan_of(source), tmp_path / "deep" / "out"
    terms = by_name(predict(plan, out, workers=2))
    assert os.listdir(tmp_path) == []
    quantize(plan, out, 2, no_progress)
    shards = [path for path in out.iterdir() if path.suffix == ".safetensors"]
    written = sum(path.stat().st_size for path in shards)
    assert 0 < written - terms["output"].nbytes < 100_000  # headers
    read = sum(header.path.stat().st_size for header in plan.checkpoint.headers.values())
    assert 0 < read - terms["source"].nbytes < 100_000
    assert terms["copy"].nbytes + terms["nvfp4"].nbytes == terms["source"].nbytes
    assert all(term.bytes_per_s > 0 for term in terms.values())


@pytest.mark.parametrize("finished", [1, 3])
def test_what_is_finished_counts_no_more(source, tmp_path, finished):
    plan, out = plan_of(source), tmp_path / "out"
    names, some = list(plan.shards)[:finished], FileHash("0" * 64, 1)
    with OutputFolder(out, plan) as folder:
        folder.resume()
        for name in names:
            (out / name).write_bytes(b"x")
            folder.record(name, FinishedShard(some, some, stamp_of(out / name), {}))
    found = predict(plan, out, workers=1)
    done = sum(step.source.nbytes for name in names for step in plan.shards[name])
    assert found.read.nbytes == plan.source_bytes - done
    assert (found.overlapped_seconds > 0) == (finished < len(plan.shards) == 3)


@pytest.mark.parametrize(
    ("folder", "free", "message"),
    [("/", 10**6, "has 1.00 MB free"), ("/proc", 10**12, "cannot be")],
)
def test_a_place_that_takes_nothing_is_a_fault(source, monkeypatch, folder, free, message):
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(EnvironmentFault, match=message) as caught:
        predict(plan_of(source), Path(folder) / "none" / "out", workers=1)
    assert caught.value.where == folder and caught.value.hint


def test_hy3_itself(tmp_path):
    """Headers of the real size with holes for data: nothing to read, so OUT's disk is measured."""
    found = predict(plan_of(write_sparse(tmp_path / "hy3", HY3)), tmp_path / "out", workers=2)
    terms = by_name(found)
    assert found.read_from == "OUT"
    assert terms["source"].nbytes == 597_572_342_272
    assert terms["output"].nbytes == 180_826_481_152
    assert terms["nvfp4"].nbytes == 579_820_584_960
    slowest = found.seconds_by_activity[found.bound_by]
    assert slowest == found.overlapped_seconds < found.serial_seconds
