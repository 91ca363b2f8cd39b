"""Several processes train, each under a cap of its own, and choose their plans alike."""

from itertools import groupby
from pathlib import Path

PATIENT = Path(__file__).parent / "patient.toml"
ALONE = "chooses its plans alone from here on"


def assuming(link, tmp_path):
    """Settings with which a plan assumes such a link."""
    config = tmp_path / "link.toml"
    rates = "".join(f'link_{way} = "{link}"\n' for way in ("out", "in", "both"))
    config.write_text(PATIENT.read_text() + rates)
    return {"config": str(config)}


def plans(run):
    """The plan after each step."""
    return [stats["plan"] for stats in run.result["course"]]


def in_turn(numbers):
    """Each number once for as long as it stays."""
    return [number for number, _ in groupby(numbers)]


def agreeing(run):
    """How many ranks chose alike after each step."""
    return [stats["agreeing_ranks"] for stats in run.result["course"]]


def assert_alike(one, two):
    """Both ranks ran the same plan in every step, and plans there were."""
    assert agreeing(one) == agreeing(two) == [2] * len(agreeing(one))
    assert plans(one) == plans(two)
    assert any(plans(one))


def first(run, stage):
    """The first step after which the rank was in this stage."""
    return [stats["stage"] for stats in run.result["course"]].index(stage)


def assert_together(one, two):
    """Both ranks began to search in the same step, and settled in the same."""
    assert agreeing(one) == agreeing(two) == [2] * len(agreeing(one))
    assert first(one, "SearchPolicy") == first(two, "SearchPolicy")
    # One may go back to an earlier plan, whose blocks need a step to find their places.
    assert abs(first(one, "Stable") - first(two, "Stable")) <= 1


def assert_went_on_alone(run, reason):
    """The rank was with the other first, said once that it goes on alone, and why."""
    assert agreeing(run)[0] == 2
    assert agreeing(run)[-1] == 1
    assert run.log.count(ALONE) == 1, run.log
    assert reason in run.log


def test_ddp(compare):
    assert_alike(*compare("replicated", 8, ranks=2))


def test_each_rank_plans_for_the_sizes_that_come_to_it(compare):
    runs = compare("padded", 8, ranks=2)
    for run in runs:
        assert set(agreeing(run)) == {2}
        (family,) = run.result["families"]
        assert len(family["recorded_probe_bytes"]) >= 3
        assert family["levels"][0]["steps"] > 10, family
    one, two = (run.result["families"][0]["recent_probe_bytes"] for run in runs)
    assert one != two, "the ranks had the same sizes"


def test_fsdp2(compare):
    # Buffers of collectives go when their threads are done: now and then a step needs a rescue.
    one, two = compare("sharded", 8, ranks=2, settles=False)
    assert_alike(one, two)
    stages = [stats["stage"] for stats in one.result["course"]]
    assert stages.count("Stable") >= len(stages) // 4, stages


def test_updates_of_shards_may_wait(compare):
    one, two = compare("sharded", 8, ranks=2, settles=False, settings={"defer_updates": "on"})
    # What waits may begin a rank's next step before its orders come: they hold one step later then.
    assert agreeing(one) == agreeing(two) == [2] * len(agreeing(one))
    turns = [in_turn(plans(run)) for run in (one, two)]
    # The last one may come to a rank behind its last step.
    met = min(map(len, turns))
    assert met > 1 and turns[0][:met] == turns[1][:met], turns
    for run in (one, two):
        assert run.result["stats"]["deferred_updates"] > 0, "all updates ran at once"


def test_ranks_are_laid_out(compare, tmp_path):
    # A layout may be too large by a little where a plan for less memory would add more time than
    # some memory calls, or there is none. Fast copies and half as much memory again as in the
    # tests beside this one leave room for one that fits.
    runs = compare("replicated", 12, ranks=2, settings=assuming("2GB/s", tmp_path))
    assert_alike(*runs)
    for run in runs:
        stages = [stats["stage"] for stats in run.result["course"]]
        assert stages[-1] == "Stable", stages
        calls = [sum(stats["last_memory_calls"].values()) for stats in run.result["course"]]
        assert sorted(calls[-4:])[1] <= 2, calls


def test_ranks_that_are_slow_under_different_plans_choose_the_same(compare, tmp_path):
    # Without delay this link would be too slow, and with it most is hidden: plans differ.
    one, two = compare("hindered", 12, ranks=2, settings=assuming("100MB/s", tmp_path))
    assert_alike(one, two)
    assert len(set(plans(one))) > 2, "there was something to choose"
    assert ALONE not in one.log + two.log


def test_ranks_with_different_models_begin_and_settle_together(compare):
    one, two = compare("different", 12, ranks=2)
    assert set(plans(one)) & set(plans(two)) == {0}, "the models are the same"
    assert_together(one, two)


def test_a_rank_that_fits_keeps_no_other_from_settling(compare):
    one, two = compare("one_fits", 12, ranks=2, idle=[0])
    assert agreeing(one) == agreeing(two) == [2] * len(agreeing(one))
    assert not any(plans(one))
    # Alone it would know at once that there is nothing to search for.
    assert first(one, "SearchPolicy") == first(two, "SearchPolicy")
    assert one.result["stats"]["stage"] == "Stable"


def test_a_rank_with_fewer_steps_leaves(compare):
    one, two = compare("leaves", 12, ranks=2, settles=False)
    assert len(agreeing(two)) == 7
    assert plans(one)[:6] == plans(two)[:6]
    assert_went_on_alone(one, "another rank left")
    assert ALONE not in two.log


def test_a_rank_that_fails_leaves(compare):
    one, _ = compare("raises", 12, ranks=2, settles=False, fails=[1])
    assert_went_on_alone(one, "another rank left")


def test_a_rank_that_stays_behind_is_waited_for_once(compare):
    one, two = compare("stays_behind", 12, ranks=2, settles=False, settings={"rank_wait": 2})
    assert_went_on_alone(one, "it waited 2 s for the other ranks")
    assert_went_on_alone(two, "another rank left")


def test_a_rank_that_opens_its_engine_late_is_not_waited_for_long(compare):
    runs = compare(
        "opens_late",
        12,
        ranks=2,
        # Most of the second rank lives outside its engine.
        idle=[1],
        settles=False,
        opens=False,
        arguments={"memory": 12 << 20},
        plain_arguments={},
    )
    for run in runs:
        assert set(agreeing(run)) == {1}
        assert run.log.count(ALONE) == 1, run.log


def test_ranks_may_choose_alone(compare):
    runs = compare("hindered", 12, ranks=2, settings={"rank_wait": 0})
    for run in runs:
        assert set(agreeing(run)) == {1}
        assert ALONE not in run.log
