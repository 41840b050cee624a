"""Where tasks run is said once, by a command's options, and reaches all that is under it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.parallel import tasks
from noiseproof.parallel.tasks import WITHIN, Placement, asked, cores, current, placed, spread_out
from tests.parallel import work


def test_a_placed_block_lasts_as_long_as_it_lasts():
    assert current() is None
    with placed(Placement(jobs=3)):
        assert current() == Placement(jobs=3)
        with placed(WITHIN):
            assert not spread_out()
        assert spread_out()
    assert not spread_out()


def test_what_nobody_asked_for_changes_nothing():
    with asked(None, None):
        assert current() is None
    with asked(None, "auto"):
        assert current() == Placement(ray="auto")
    with pytest.raises(SettingError, match="not both"):
        asked(2, "auto")


def test_jobs_are_the_cores_where_none_are_given():
    assert Placement().processes == cores() >= 1
    assert Placement(jobs=7).processes == 7


# Tasks give the same results wherever they run, and outlive the death of their workers.


def test_results_come_with_their_places_and_collect_puts_them_in_order():
    assert dict(tasks.run(work.square, range(5), jobs=2)) == {n: n * n for n in range(5)}
    assert tasks.collect(work.square, range(5), jobs=2) == [n * n for n in range(5)]


def test_one_job_is_this_process_and_threads_are_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert tasks.collect(work.where, range(3), jobs=1) == [(os.getpid(), 1)] * 3
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_several_jobs_are_other_processes_with_one_thread_each():
    found = tasks.collect(work.where, range(4), jobs=2)
    assert os.getpid() not in {process for process, _ in found}
    assert len({process for process, _ in found}) <= 2
    assert {threads for _, threads in found} == {1}


def test_common_arguments_come_first():
    assert tasks.collect(work.add, [1, 2], common=(10, 100), jobs=2) == [111, 112]


def test_weights_do_not_depend_on_the_number_of_processes():
    seeds = tasks.seeds(7, 4)
    alone = tasks.collect(work.draw, seeds, jobs=1)
    many = tasks.collect(work.draw, seeds, jobs=2)
    assert all(torch.equal(a, b) for a, b in zip(alone, many, strict=True))


def test_seeds_depend_on_the_seed_and_the_place_alone():
    assert tasks.seeds(3, 5) == tasks.seeds(3, 9)[:5]
    assert len(set(tasks.seeds(3, 100)) | set(tasks.seeds(4, 100))) == 200
    with pytest.raises(SettingError):
        tasks.seeds(-1, 2)


def test_a_task_whose_process_dies_is_run_again(tmp_path):
    assert tasks.collect(work.die_once, range(4), common=(tmp_path,), jobs=2) == [0, 1, 2, 3]
    assert (tmp_path / "2").exists()


def test_a_task_that_is_lost_every_time_is_named_or_replaced():
    with pytest.raises(tasks.LostTaskError, match="task 1 of 3 was lost 2 times"):
        tasks.collect(work.die_always, range(3), jobs=2, attempts=2)
    stands_in = tasks.collect(work.die_always, range(3), jobs=2, attempts=1, lost=lambda task, why: -task)
    assert stands_in == [0, -1, 2]


def test_what_a_task_raises_is_raised_here():
    for jobs in (1, 2):
        with pytest.raises(SettingError, match="one is refused"):
            tasks.collect(work.refuse, range(3), jobs=jobs)


def test_what_cannot_be_sent_back_is_told_by_its_kind():
    with pytest.raises(NoiseproofError, match="OddError"):
        tasks.collect(work.raise_odd, range(2), jobs=2)
    with pytest.raises(NoiseproofError, match="cannot be sent back"):
        tasks.collect(work.unsendable, range(2), jobs=2)


def test_a_placed_block_decides_where_nothing_else_does_and_tasks_within_tasks_stay_in_their_worker():
    with placed(Placement(jobs=1)):
        assert tasks.collect(work.where, range(2)) == [(os.getpid(), 1)] * 2
    assert tasks.collect(work.within, [1, 2], jobs=2) == [[1, 4], [4, 9]]


def test_placements_that_cannot_be_are_refused():
    with pytest.raises(SettingError, match="at least 1"):
        Placement(jobs=0)
    with pytest.raises(SettingError, match="not both"):
        Placement(jobs=2, ray="auto")
    with pytest.raises(SettingError, match="at least 1"):
        tasks.collect(work.square, [1], attempts=0)


# Tasks that must not take their caller with them: isolated, in time, with their prints and progress sent elsewhere.


def test_an_isolated_task_is_another_process_though_there_is_one_job():
    assert tasks.collect(work.where, [1], jobs=1, isolated=True) != [(os.getpid(), 1)]


def test_a_task_that_takes_too_long_is_lost_and_no_other():
    found = tasks.collect(work.sleep, [0, 60, 0], jobs=2, timeout=3, attempts=1, lost=lambda _, loss: loss)
    assert found[0] == found[2] == 0
    assert found[1].hang
    assert "within 3 seconds" in found[1].why


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_of_tasks_is_heard_with_the_tasks_index(jobs):
    heard = []
    tasks.collect(work.progresses, [5, 7], report=lambda *at: heard.append(at), jobs=jobs)
    assert {(0, "counting", 1, 5), (1, "counting", 1, 7)} <= set(heard)


def test_what_a_task_prints_goes_to_the_log_and_not_to_stdout(tmp_path, capfd):
    tasks.collect(work.prints, ["a line", "another"], jobs=2, log=tmp_path / "log")
    assert capfd.readouterr().out == ""
    assert set((tmp_path / "log").read_text().split("\n")) == {"a line", "another", ""}


def test_forked_workers_take_functions_that_cannot_be_pickled():
    assert tasks.collect(lambda number: number + 1, [1, 2], jobs=2, fork=True) == [2, 3]
    lost = tasks.collect(
        lambda number: work.die_always(number), range(3), jobs=2, fork=True, attempts=1, lost=lambda _, loss: loss.why
    )
    assert "killed" in lost[1]


def test_a_script_without_a_guard_can_run_functions_of_modules(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from noiseproof.parallel import tasks\nfrom tests.parallel import work\n"
        "print(tasks.collect(work.square, [1, 2], jobs=2))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout == "[1, 4]\n"


def test_a_script_with_a_guard_can_run_its_own_functions(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from noiseproof.parallel import tasks\ndef double(number):\n    return 2 * number\n"
        "if __name__ == '__main__':\n    print(tasks.collect(double, [1, 2], jobs=2))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout == "[2, 4]\n"
