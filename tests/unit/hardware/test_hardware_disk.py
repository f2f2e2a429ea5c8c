"""Probes of the disk: they count what they did, stop in time and leave nothing."""

from __future__ import annotations

import os
import threading
import time

import pytest

from hy3.hardware.disk import has_holes, read_rate, write_and_read_rate
from hy3.hardware.rate import Rate, rate_of


def test_small_files_are_read_once_and_whole(tmp_path):
    paths = [tmp_path / name for name in "abc"]
    for i, path in enumerate(paths):
        path.write_bytes(bytes(5 * 2**20 * i + 1))
    rate = read_rate(paths, threads=2, seconds=60)
    assert rate.nbytes == sum(path.stat().st_size for path in paths)
    assert rate.bytes_per_s == rate.nbytes / rate.seconds > 0


def test_writing_is_bounded_and_leaves_nothing(tmp_path):
    written, read = write_and_read_rate(tmp_path, most_bytes=9 * 2**20 + 3, seconds=60)
    assert written.nbytes == read.nbytes == 9 * 2**20 + 3
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_take_files_is_an_error(tmp_path):
    with pytest.raises(OSError):
        write_and_read_rate(tmp_path / "none")


def test_holes_are_noticed(tmp_path):
    solid, hollow = tmp_path / "solid", tmp_path / "hollow"
    solid.write_bytes(os.urandom(2**20))
    hollow.touch()
    os.truncate(hollow, 2**20)
    assert has_holes(hollow) and not has_holes(solid)


def test_threads_add_up_and_stop_at_the_deadline():
    seen = set()

    def endless():
        while True:
            seen.add(threading.get_ident())
            time.sleep(0.01)
            yield 7

    rate = rate_of(endless, threads=3, seconds=0.05)
    assert len(seen) == 3 and rate.nbytes % 7 == 0 and rate.nbytes >= 3 * 7
    assert rate.seconds >= 0.05
    assert rate_of(lambda: iter(()), threads=2, seconds=60).bytes_per_s == 0


def test_rates_add_up_and_count_the_processor_of_all_threads():
    assert Rate(6, 1.0, 0.5) + Rate(2, 3.0, 0.1) == Rate(8, 4.0, 0.6)

    def busy():
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            hash(end)
        yield 1

    assert rate_of(busy, threads=2, seconds=60).cpu_seconds >= 0.04
