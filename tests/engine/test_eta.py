"""How long there is to go: arithmetic against cases reckoned by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.engine.eta import Forecast, Pace, format_duration, left_of_tasks, off_by


def paced(*points: tuple[float, float], before: float = 0.0) -> Pace:
    """A pace that began at 0 and saw (seconds, share)."""
    made = Pace(0.0, before)
    for now, share in points:
        made.note(now, share)
    return made


def test_nothing_is_said_in_the_first_seconds():
    assert paced((1, 0.1), (4.9, 0.5)).seconds_left(4.9) is None


def test_nothing_is_said_of_hardly_any_work():
    assert paced((10, 0.001), (40, 0.015)).seconds_left(40) is None


def test_after_a_minute_little_work_will_do():
    # 0.01 in the 50 s from the first step to the second: 0.98 more take 4,900 s.
    assert paced((20, 0.01), (70, 0.02)).seconds_left(70) == pytest.approx(4900)


def test_work_at_an_even_pace():
    # 0.1 every 10 s, the last time at 40: 0.6 are left, 60 s.
    assert paced(*((10 * n, 0.1 * n) for n in (1, 2, 3, 4))).seconds_left(40) == pytest.approx(60)


def test_the_start_of_workers_does_not_count():
    # 100 s until the first step, then 0.1 every 10 s.
    assert paced((100, 0.1), (110, 0.2), (120, 0.3)).seconds_left(120) == pytest.approx(70)


def test_waiting_for_the_next_step_does_not_slow_it_down():
    pace = paced((10, 0.1), (20, 0.2), (30, 0.3))
    pace.seconds_left(30)
    # 0.7 are left at 30, so the end is at 100, whenever one asks before the next step.
    assert pace.seconds_left(37) == pytest.approx(63)


def test_what_was_done_before_anybody_looked_does_not_count_as_fast():
    # From 0.5 on, 0.1 every 10 s.
    assert paced((10, 0.6), (20, 0.7), (30, 0.8), before=0.5).seconds_left(30) == pytest.approx(20)


def test_the_pace_is_that_of_the_last_minute():
    slow = [(60.0 * n, 0.01 * n) for n in range(1, 11)]  # ten minutes for a tenth
    quick = [(600.0 + 60 * n, 0.1 + 0.1 * n) for n in range(1, 8)]
    # At 1,020 s 0.8 are done; in the last half of what was seen (480 s) 0.7 + 0.01.
    assert paced(*slow, *quick).seconds_left(1020) == pytest.approx(0.2 / (0.71 / 480), rel=1e-3)


def test_a_share_that_falls_back_is_no_step():
    assert paced((10, 0.2), (20, 0.4), (25, 0.3), (30, 0.6)).seconds_left(30) == pytest.approx(20)


def test_the_end_moves_without_jumps():
    pace = paced((10, 0.1), (20, 0.2))
    assert pace.seconds_left(20) == pytest.approx(80)
    pace.note(21, 0.6)  # suddenly 0.4 at once: reckoned at 21, the end would be at 29.8
    assert 60 < pace.seconds_left(21) < 79
    assert pace.seconds_left(81) == 0


def test_a_machine_that_sleeps_does_not_slow_it_down():
    # 0.01 every 10 s; after 300 s the clock jumps by 5 h.
    pace = paced(*((10.0 * n, 0.01 * n) for n in range(1, 31)))
    assert pace.seconds_left(300) == pytest.approx(700)
    woken = 300.0 + 5 * 3600
    pace.note(woken + 10, 0.31)
    assert pace.seconds_left(woken + 10) == pytest.approx(690)
    pace.note(woken + 20, 0.32)
    assert pace.seconds_left(woken + 20) == pytest.approx(680)


def test_a_machine_that_sleeps_does_not_make_later_phases_longer():
    forecast = Forecast(0.0)
    forecast.expected = {"read": 100.0, "dedup": 100.0}
    forecast.begin(0.0, "read", 0.0)
    for step in range(1, 51):
        forecast.note(2.0 * step + (18_000 if step > 25 else 0), 0.01 * step)
    # Twice as long as expected is taken.
    assert forecast.seconds_left(18_100, ["dedup"]) == (pytest.approx(100), pytest.approx(300))


def test_a_task_that_takes_longer_than_others_is_no_sleep():
    # In the last half of what was seen 0.1 took 500 s, and 0.7 are left.
    assert paced((10, 0.1), (20, 0.2), (520, 0.3)).seconds_left(520) == pytest.approx(3500)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1)), max_size=30))
def test_whatever_was_seen_time_left_is_never_negative(points):
    pace = Pace(0.0)
    for now, share in sorted(points):
        pace.note(now, share)
        left = pace.seconds_left(now)
        assert left is None or left >= 0


def test_whoever_comes_late_reckons_from_the_tasks_that_are_done():
    # A quarter took 120 s of work; three quarters take 360 s, in 4 places 90 s.
    assert left_of_tasks(120, 0.25, 4) == 90
    assert left_of_tasks(120, 0.001, 4) is None


def test_later_phases_are_as_much_slower_than_expected_as_earlier_ones():
    assert off_by([(10, 20), (30, 60)]) == 2
    assert off_by([(0.1, 0.2)]) is None  # too little to tell
    assert off_by([(1, 1000)]) is None  # what is so wrong says nothing about the rest


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(2, "seconds"), (7, "about 5 s"), (43, "about 45 s"), (58, "about 1 min"),
     (100, "about 2 min"), (5400, "about 1 h 30 min"), (3 * 3600, "about 3 h"),
     (86400, "about 24 h"), (5 * 86400, "about 5 days")],
)  # fmt: skip
def test_times_are_said_no_more_exactly_than_they_are_known(seconds, words):
    assert format_duration(seconds) == words


RECORDED = json.loads((Path(__file__).parent / "recorded_runs.json").read_text())
"""What happened in real runs, and when: (seconds, `begin` | `note` | `compiles` | `end` | `left`,
...); `left` is a moment at which somebody looked. `begin` has what each phase was expected to take.
"""


def told(recording: dict) -> list[tuple[float, float]]:
    """Replay a run; return (seconds said to be left, seconds that were left) of phases and run."""
    events = recording["events"]
    ends = [event[0] for event in events if event[1] == "end"]
    forecast = Forecast(0.0)
    pairs: list[tuple[float, float]] = []
    phase, num_ended = "", 0
    for now, what, *facts in events:
        if what == "begin":
            phase = facts[0]
            forecast.begin(now, phase, facts[1])
            forecast.expected.update(facts[2])
        elif what == "note":
            forecast.note(now, facts[0])
        elif what == "compiles":
            forecast.restart(now, facts[0])
        elif what == "end":
            forecast.end(now, is_measured=facts[0])
            num_ended += 1
        elif num_ended < len(ends):
            later = recording["phases"][recording["phases"].index(phase) + 1 :]
            said = forecast.seconds_left(now, later)
            truth = (ends[num_ended] - now, ends[-1] - now)
            pairs += [(one, true) for one, true in zip(said, truth, strict=True) if one is not None]
    return pairs


@pytest.mark.parametrize("recording", RECORDED, ids=lambda recording: recording["run"])
def test_what_is_told_of_a_real_run_is_about_right(recording):
    for said, true in told(recording):
        assert abs(said - true) < 10 or 1 / 4 < said / true < 4, (said, true)


def test_time_spent_compiling_says_nothing_about_the_rest():
    forecast = Forecast(0.0)
    forecast.expected = {"read": 10.0, "dedup": 30.0}
    forecast.begin(0.0, "read", 0.0)
    forecast.note(100.0, 0.1)
    forecast.restart(100.0, 0.1)
    assert forecast.seconds_left(110.0, ["dedup"]) == (None, None)
    # From 100 s on 0.1 every 2 s: at 116 s 0.1 are left, and twice as long as expected is taken.
    for step in range(1, 9):
        forecast.note(100.0 + 2 * step, 0.1 + 0.1 * step)
    assert forecast.seconds_left(116.0, ["dedup"]) == (pytest.approx(2), pytest.approx(2 + 60))


def test_too_little_of_a_run_says_nothing_about_all_of_it():
    forecast = Forecast(0.0)
    forecast.expected = {"read": 10.0, "dedup": 1000.0}
    forecast.begin(0.0, "read", 0.0)
    for step in range(1, 9):
        forecast.note(2.0 * step, 0.1 * step)
    phase, run = forecast.seconds_left(16.0, ["dedup"])
    assert (phase, run) == (pytest.approx(4), None)
