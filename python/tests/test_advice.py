"""What the cap costs, and what others would: told once, and on request."""

import itertools
import re

import pytest

from processes import PATIENT, python, run

MODEL = """
    import torch
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    def train(steps):
        for _ in range(steps):
            loss = model(torch.randn(1024, 512)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()
"""
OPENED = f"""
    smartswap.enable("40MiB", device="host", min_block="64KiB", config={str(PATIENT)!r})
    try:
        smartswap.advise()
    except RuntimeError as error:
        print(error)
"""
ADVISED = """
    train(12)
    advice = smartswap.advise()
    assert advice.memory == 40 * MIB < advice.peak, advice
    sizes = [cap.memory for cap in advice.caps]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == advice.peak, sizes
    assert 40 * MIB in sizes and len(sizes) > 3, sizes
    costs = [cap.step_ms for cap in advice.caps]
    assert costs == sorted(costs) and costs[0] == advice.unlimited_ms, costs
    tight = advice.caps[sizes.index(40 * MIB)]
    assert tight.out_bytes + tight.recomputed_ms > 0 and tight.ratio >= 1, tight
    assert [more.times for more in advice.accumulations] == [2, 4], advice.accumulations
    for more in advice.accumulations:
        assert more.ratio >= 1 and more.step_ms > more.times / 2 * advice.unlimited_ms, more
    text = str(advice)
    assert text.count("<- now") == 1 and len(text.splitlines()) >= len(sizes) + 5, text
    print(train(3).hex())
"""
# As many micro-batches as one likes: what they need, and what twice as many would.
ACCUMULATED = """
    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(N):
                loss = model(torch.randn(1024, 512)).square().mean() / N
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    train(12)
    advice = smartswap.advise()
    print(advice.peak, advice.accumulations[0].peak)
"""
# The real figures, but for how long the steps took.
COSTLY = """
    import logging
    from smartswap import engine
    logging.getLogger("smartswap").addHandler(logging.StreamHandler(sys.stdout))
    explain = engine.explain
    def costly():
        told = explain()
        for one in (told["measured"], told["prediction"]):
            one["step_us"] = FACTOR * told["prediction"]["unlimited_us"]
        return told
    engine.explain = costly
    train(40)
"""
# What other caps cost is not known before all steps are done.
SLOWLY = """
    import threading
    from smartswap import _native
    adapter, done = _native.adapter(), threading.Event()
    advise = adapter.advise
    def slow():
        assert done.wait(60), "the training waits for what is told of it"
        return advise()
    adapter.advise = slow
"""
TOLD = re.compile(
    r"smartswap: the cap of 40.00 MiB costs \d+\.\d\dx to \d+\.\d\dx: .* a step, .* predicted, "
    r".* leave and .*; "
    r"smartswap.advise\(\) tells what other caps cost"
)


def test_caps_are_told_from_all_that_the_step_needs_to_the_least(tmp_path):
    error, last = run(tmp_path, OPENED + MODEL + ADVISED).splitlines()
    assert error.endswith("no step has been recorded yet: run a few steps first")
    # It looks, and changes nothing.
    assert run(tmp_path, MODEL + "    print(train(15).hex())\n") == f"{last}\n"


@pytest.mark.parametrize("updates", ["off", "on"])
def test_more_micro_batches_need_what_they_are_said_to(tmp_path, updates):
    opened = OPENED.replace('device="host"', f'device="host", defer_updates={updates!r}')
    told = []
    for count in ("1", "2", "4"):
        script = opened + MODEL + ACCUMULATED.replace("N", count)
        told.append([int(word) for word in run(tmp_path, script).splitlines()[-1].split()])
    for (one, foreseen), (twice, _) in itertools.pairwise(told):
        # A batch, of 2 MiB, that stays until there is another one.
        assert twice <= foreseen <= twice + (2 << 20), (one, told)
    # A second gradient beside the sum of those before.
    assert told[0][0] < told[1][0] == told[2][0], told


def test_one_line_says_what_the_cap_costs_once_a_plan_is_settled(tmp_path):
    flags = ["--memory", "40MiB", "--device", "host", "--min-block", "64KiB"]
    flags += ["--config", PATIENT, "--log-level", "info"]
    script = tmp_path / "train.py"
    script.write_text("if True:\n" + MODEL + "    train(40)\n")
    done = python("-m", "smartswap", *flags, script)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if TOLD.fullmatch(line)]
    assert len(told) == 1, done.stderr


def test_without_a_wish_only_a_cap_that_costs_much_is_told_of(tmp_path):
    [_, warned] = run(tmp_path, OPENED + MODEL + COSTLY.replace("FACTOR", "2.5")).splitlines()
    assert warned.startswith("the cap of 40.00 MiB costs 2.50x to 2.50x: ")
    assert re.search(r"; about [12]\.\d\dx with \d+\.\d\d MiB; .*smartswap.advise", warned), warned
    [_] = run(tmp_path, OPENED + MODEL + COSTLY.replace("FACTOR", "1.5")).splitlines()


def test_training_goes_on_while_other_caps_are_planned_for(tmp_path):
    script = OPENED + MODEL + SLOWLY + COSTLY.replace("FACTOR", "2.5") + "    done.set()\n"
    told = run(tmp_path, script)
    assert re.search(r"the cap of 40.00 MiB costs .*; about .*smartswap.advise", told), told


def test_no_cap_is_said_to_make_steps_shorter(tmp_path):
    told = "    import logging; logging.getLogger('smartswap').setLevel('INFO')"
    told += COSTLY.replace("FACTOR", "0.8")
    lines = run(tmp_path, OPENED + MODEL + told).splitlines()
    assert any("the cap of 40.00 MiB costs 1.00x to 1.00x: " in line for line in lines), lines
