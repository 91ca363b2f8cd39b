"""What a run says of itself: the report, the summary, the log, warnings."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import python, run
from smartswap import program, progress

# Steps, of which the last one is `odd`: so many, or if the number is 0 until some in a row were
# Stable under one plan, of which one in 16 is measured.
# Plans are made beside the training, so how many that takes depends on how busy the machine is:
# there a plan may be given up for another again.
TRAINING = """
import sys, smartswap, torch
torch.manual_seed(1)
odd, steps = sys.argv[1], int(sys.argv[2])
plan, in_a_row = None, 0
def is_last(step):
    global plan, in_a_row
    if steps:
        return step == steps
    stats = smartswap.stats()
    is_same = stats["stage"] == "Stable" and stats["plan"] == plan
    plan, in_a_row = stats["plan"], in_a_row + 1 if is_same else 0
    return step == 400 or in_a_row == 18
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
is_odd, step = False, 0
while not is_odd:
    step += 1
    is_odd = is_last(step)
    batch = 300 if is_odd and odd == "shorter" else 512
    loss = model(torch.randn(batch, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if is_odd and odd == "longer":
        model(torch.randn(batch, 256)).sum().backward()
    if is_odd and odd == "with one more op":
        loss = loss * 2
    optimizer.step()
"""


COSTS = "smartswap: the cap of 12.00 MiB costs "
# What any report has.
ALWAYS = {"caps.json", "explain.json", "stats.json", "step.html", "timeline.json", "trace.json"}


def train(tmp_path, *flags, odd="", steps=0):
    """Runs the training in a process of its own. Returns what came on stderr."""
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    done = python("-m", "smartswap", "--min-block", "64KiB", *flags, script, odd, steps)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def swap(*words):
    """Runs the packaged command line."""
    return subprocess.run(
        [str(program.path()), *map(str, words)], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("odd", ["shorter", "longer", "with one more op"])
def test_a_report_is_whole_whatever_the_last_step_was(tmp_path, odd):
    report = tmp_path / "report"
    said = train(tmp_path, "--memory", "12MiB", "--report", report, odd=odd)
    # On a busy machine a cap may cost much, which is said.
    assert all(line.startswith(COSTS) for line in said.splitlines()), said
    assert {path.name for path in report.iterdir()} == ALWAYS | {"lanes.json", "plan.json"}
    done = swap("simulate", report / "trace.json", "--plan", report / "plan.json", "--json")
    assert done.returncode == 0, done.stderr
    simulated = json.loads(done.stdout)
    assert simulated["swapped_out_bytes"] + simulated["recomputed_ops"] > 0
    explained = json.loads((report / "explain.json").read_text())
    assert explained["steps_by_stage"]["Stable"] >= 5
    actions = json.loads((report / "plan.json").read_text())["body"]["actions"]
    assert explained["plan_actions"] == len(actions) > 0
    leaves = sum(action["kind"] in ("swap_out", "discard") for action in actions)
    moved = [one for one in explained["decisions"] if one["treatment"] != "keep"]
    assert len(moved) == leaves
    page = (report / "step.html").read_text()
    assert page.count('class="badge swap"') + page.count('class="badge recompute"') == leaves
    assert "smartswap: " not in page


def test_a_report_takes_the_place_of_an_earlier_one(tmp_path):
    report = tmp_path / "report"
    train(tmp_path, "--memory", "12MiB", "--report", report)
    assert (report / "plan.json").exists()
    # Everything fits, so there is no plan.
    assert train(tmp_path, "--memory", "64MiB", "--report", report) == ""
    # A step may have been measured before the engine found that it has nothing to do.
    assert {path.name for path in report.iterdir()} - {"lanes.json"} == ALWAYS
    assert json.loads((report / "stats.json").read_text())["went_without_memory"] == {}


def test_the_page_shows_what_other_caps_would_cost(tmp_path):
    report = tmp_path / "report"
    train(tmp_path, "--memory", "12MiB", "--report", report)
    told = json.loads((report / "caps.json").read_text())
    assert told["limit_bytes"] == 12 << 20
    assert told["limit_bytes"] in [cap["limit_bytes"] for cap in told["caps"]]
    page = (report / "step.html").read_text()
    assert "<h2 id=\"caps-title\">Under other caps</h2>" in page
    assert page.count("(this run)") == 1
    assert page.count('<tr><th scope="row">') == len(told["caps"])


def test_the_page_begins_with_what_was_measured(tmp_path):
    report = tmp_path / "report"
    train(tmp_path, "--memory", "12MiB", "--report", report)
    explained = json.loads((report / "explain.json").read_text())
    headline = re.search("<h1>(.*)</h1>", (report / "step.html").read_text()).group(1)
    measured_ms = explained["measured"]["step_us"] / 1e3
    said, unit = re.search(r"at ([0-9.]+) (ms|s) a step; .* in the simulation", headline).groups()
    assert float(said) * {"ms": 1, "s": 1000}[unit] == pytest.approx(measured_ms, rel=0.01)
    peak_mib = explained["measured"]["resident_bytes_peak"] / 2**20
    assert float(headline.split(" MiB instead of")[0]) == pytest.approx(peak_mib, abs=0.1)
    # The prediction is for this machine's link.
    facts = (report / "step.html").read_text()
    assert f"--link-out {int(explained['link']['out_bytes_per_s'])}" in facts


def test_the_summary_tells_what_was_needed_and_the_steps_by_stage(tmp_path):
    said = train(tmp_path, "--memory", "12MiB", "--log-level", "info", odd="shorter").splitlines()
    counts = re.search(
        r"(\d+) steps: (\d+) WarmUp, (\d+) SearchPolicy, (\d+) Stable; tensors took ([0-9.]+) MiB "
        r"at most, and ([0-9.]+) MiB were held of a cap of 12.00 MiB; moved out ",
        said[-1],
    )
    assert counts, said
    all_steps, warm_up, search, stable = map(int, counts.groups()[:4])
    assert warm_up + search + stable == all_steps
    assert stable > 0
    # A line for each step before the first Stable one.
    steps = [line for line in said if re.match(r"smartswap: step \d+, ", line)]
    assert "step 1, finding out what it needs: " in steps[0]
    tries = r"step \d+, trying plan 1 of 3: [0-9.]+ ms(, [0-9.]+x)?$"
    assert re.search(tries, "\n".join(steps), re.M)
    assert warm_up < len(steps) < all_steps
    # At what the tensors took everything fits; at what was held it did not.
    took, held = map(float, counts.groups()[4:])
    assert held <= 12 < took
    said = train(tmp_path, "--memory", f"{took + 4}MiB", "--log-level", "info", steps=8)
    assert "moved out 0 B" in said
    assert train(tmp_path, "--memory", "64MiB", "--log-level", "info", steps=1).endswith(
        "waited 0.000 s\n"
    )


LOOP = """
    smartswap.enable({cap!r}, device="host", min_block="64KiB")
    weights = [values(seed, MIB).requires_grad_() for seed in range(4)]
    for _ in range(3):
        sum(weight.square().sum() for weight in weights).backward()
        with torch.no_grad():
            for weight in weights:
                weight -= 0.1 * weight.grad
                weight.grad = None
    print(smartswap.summary())
"""


# Asks for 20 MiB at once, once, in one of three places.
FAILS = """
import sys, torch
weight = torch.ones(1024, 1024, requires_grad=True)
class Step(torch.optim.SGD):
    def step(self):
        if self.too_much:
            torch.ones(5, 1024, 1024)  # optimizer
        super().step()
optimizer = Step([weight], 0.1)
caught = 0
for where in (sys.argv[1], "nowhere"):
    optimizer.too_much = where == "optimizer"
    def look(gradient):
        if where == "backward":
            gradient.expand(5, 1024, 1024).contiguous()  # backward
    try:
        x = weight * 2
        x.register_hook(look)
        if where == "forward":
            x.expand(5, 1024, 1024).contiguous()  # forward
        x.sum().backward()
        optimizer.step()
    except torch.OutOfMemoryError:
        if len(sys.argv) < 3:
            raise
        caught += 1
print(caught)
"""


@pytest.mark.parametrize(("cap", "warned"), [("64MiB", False), ("16MiB", True)])
def test_a_loop_without_an_optimizer_is_told_how_to_end_its_steps(tmp_path, cap, warned):
    told = run(tmp_path, LOOP.format(cap=cap))
    assert told.startswith("0 steps, so nothing was planned: ")
    assert "smartswap.step()" in told
    # Nobody asked for it on stderr, but where memory is short it matters.
    done = python(tmp_path / "script.py", cwd=tmp_path)
    assert len(done.stderr.splitlines()) == int(warned)
    assert ("smartswap.step()" in done.stderr) == warned


def test_a_script_that_fails_says_so_once(tmp_path):
    """Out of memory in a forward pass, in a backward pass, in an optimizer: one error each."""
    script = tmp_path / "fails.py"
    for where in ("forward", "backward", "optimizer"):
        script.write_text(FAILS)
        done = python("-m", "smartswap", "--memory", "16MiB", script, where, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.count("out of device memory") == 1, done.stderr
        assert done.stderr.splitlines()[-1].startswith("torch.OutOfMemoryError: SmartSwap: ")
        assert f'fails.py", line {1 + FAILS[: FAILS.index("# " + where)].count(chr(10))}, in ' in (
            done.stderr
        )
        # Who goes on after it meets it no more.
        done = python("-m", "smartswap", "--memory", "16MiB", script, where, "goes on")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout == "1\n"


def test_debug_shows_the_search(tmp_path):
    said = train(tmp_path, "--memory", "12MiB", "--log-level", "debug", odd="longer")
    time = r"[0-9.]+ ms"
    for expect in (
        r"step 1, kind \w{8} of \d+ ops: new, in WarmUp",
        r"kind \w{8} of \d+ ops: WarmUp -> SearchPolicy",
        rf": tries plan 1: [1-9]\d* actions, {time} predicted",
        rf": plan 1: {time} measured, {time} of it waiting.*, {time} predicted: the best so far",
        rf": adopts a plan of [1-9]\d* actions, {time} measured, .*: \w.*",
        r": SearchPolicy -> Stable",
        r"step \d+, kind \w{8} of \d+ ops: follows the plan of another kind, except for \d+ ops",
    ):
        assert len(re.findall(f"^smartswap: .*{expect}$", said, re.MULTILINE)) >= 1, expect
    assert ": tries" not in train(tmp_path, "--memory", "12MiB", "--log-level", "info")


def test_the_cost_is_told_of_the_sizes_that_were_planned_for(caplog):
    level = {"measured_ratio": 1.25, "predicted_ratio": 1.2, "plan_actions": 3}
    # Met last, and only among steps that went by the other one's plan.
    families = [{"levels": []}, {"levels": [level, level]}]
    explained = {"families": families, "limit_bytes": 24 << 20, "measured": None, "op_count": 9,
                 "prediction": None}
    now = {"steps_by_stage": {"Stable": 9}, "reported_steps": 9}
    adapter = SimpleNamespace(stats=lambda: now, take_news=str)
    with caplog.at_level("INFO", "smartswap"):
        progress.Progress(None).tell(adapter, lambda: explained, is_first_rank=True)
    assert "the cap of 24.00 MiB costs 1.20x to 1.25x" in caplog.text
    assert "larger sizes that have a plan: 1" in caplog.text
    caplog.clear()
    explained["families"] = families[:1]
    progress.Progress(None).tell(adapter, lambda: explained, is_first_rank=True)
    assert caplog.text == "", "it follows no plan"


def test_an_error_in_what_is_told_ends_no_training(caplog):
    asked = []

    def stats():
        asked.append(1)
        raise KeyError("a counter that is not there")

    adapter = SimpleNamespace(stats=stats, take_news=str)
    telling = progress.Progress(None)
    for _ in range(2):
        telling.tell(adapter, dict, is_first_rank=True)
    assert len(asked) == 1
    assert caplog.text.count("which goes on") == 1
    assert "KeyError: 'a counter that is not there'" in caplog.text, "what to report"


def test_a_cap_beyond_the_machine_is_said_in_one_line(tmp_path):
    said = train(tmp_path, "--memory", "100TiB", steps=2)
    warned = re.fullmatch(
        r"SmartSwap: a cap of 102400.00 GiB is more than the machine's memory of [0-9.]+ GiB: "
        r"the default cap is used\n",
        said,
    )
    assert warned, said
    said = train(tmp_path, "--memory", "100TiB", "--log-level", "info", steps=2)
    assert re.search(r"enabled on host, cap [0-9.]+ (MiB|GiB)\n", said)
    assert train(tmp_path, "--memory", "64MiB", steps=2) == ""


def test_the_command_that_pages_name_is_there(monkeypatch, capsys):
    words = "from smartswap.program import main; main()"
    done = python("-c", words, "plan", "--help")
    assert done.returncode == 0
    assert "Usage: smartswap plan" in done.stdout
    report = json.loads(python("-c", words, "doctor", "--device", "host", "--json").stdout)
    assert report["software"]["packages"] == program.packages()
    assert program.packages().startswith("torch 2.")
    # It is what pip puts on the path.
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert '[project.scripts]\nsmartswap = "smartswap.program:main"\n' in project
    monkeypatch.setattr(program, "path", lambda: None)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    assert "without its command line" in capsys.readouterr().err
