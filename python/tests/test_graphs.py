"""CUDA graphs without CUDA: what a capture notes and keeps, and what a replay brings back.

Here "captured" is what a thread does between `begin` and `end`, and it runs all the same.
"""

import pytest
from processes import run
from smartswap.graphs import CapturedGraphs

CAPTURE = """
    from contextlib import contextmanager
    from smartswap.pointers import _storage_data_ptr
    adapter = smartswap._native.adapter()
    @torch.library.custom_op("tests::uses", mutates_args=("target",))
    def uses(target: torch.Tensor, source: torch.Tensor) -> None:
        pass
    @contextmanager
    def captured():
        graph = adapter.Graph()
        graph.begin()
        try:
            yield graph
        finally:
            graph.end()
    def address(tensor):
        return _storage_data_ptr(tensor.untyped_storage())
    def active_bytes():
        return smartswap.stats()["active_bytes"]["current"]
"""


def run_captures(tmp_path, text):
    return run(tmp_path, CAPTURE + text)


def test_what_is_away_comes_back_for_the_capture_and_for_each_replay(tmp_path):
    text = """
    smartswap.enable("16MiB", device="host", min_block="64KiB")
    target, source, other, large = values(1), values(2), values(3), values(4, 3 * MIB)
    at = address(target), address(source)
    expect = source.clone()
    held = [one.clone().numpy().tobytes() for one in (target, source)]
    smartswap.suspend()
    with captured() as graph:
        assert active_bytes() == 0
        # It does nothing, so what it names is there because it names it.
        uses(target, target)
        assert active_bytes() == 4 * MIB
        assert ctypes.string_at(at[0], 4 * MIB) == held[0]
        adapter.begin("announced")
        adapter.touch(source, 2)
        adapter.end()
        assert active_bytes() == 8 * MIB
        assert ctypes.string_at(at[1], 4 * MIB) == held[1]
    assert smartswap.stats()["misses"] == 0
    large.sum()
    assert active_bytes() == 12 * MIB, "and may leave after it"
    def launch():
        # As a kernel does it: by address, and no operator says so.
        assert active_bytes() <= 16 * MIB
        ctypes.memmove(*at, 4 * MIB)
        ctypes.memset(at[1], turn, 4)
    for turn in range(3):
        graph.run(launch)
        expect_target = expect.clone()
        values(4, 3 * MIB).sum(), values(5, 3 * MIB).sum()
        expect.view(torch.uint8)[:4] = turn
        assert torch.equal(target, expect_target) and torch.equal(source, expect)
    assert torch.equal(other, values(3))
    del target
    values(6)
    graph.run(lambda: ctypes.memset(at[1], 0, 4))
    assert float(source[0]) == 0
    print("ran", turn)
    """
    assert run_captures(tmp_path, text) == "ran 2\n"


def test_one_that_does_not_fit_is_one_clear_error(tmp_path):
    text = """
    smartswap.enable("16MiB", device="host", min_block="64KiB")
    many = [values(seed) for seed in range(6)]
    def assert_fails(part, when, body):
        try:
            body()
        except torch.OutOfMemoryError as error:
            text = str(error)
            expect = "what a CUDA graph uses must be on the device together when it " + when
            assert expect in text, text
            assert f"'{part}' needs all that it uses at once" in text, text
            assert "a cap of" in text, text
        else:
            raise AssertionError("it fits")
    def capture(blocks):
        with captured() as graph:
            for one in blocks:
                one.mul_(1)
        return graph
    assert_fails("a capture", "is captured", lambda: capture(many))
    assert all(torch.equal(one, values(seed)) for seed, one in enumerate(many))
    graph = capture(many[:3])
    kept = [values(seed) for seed in (10, 11)]
    shared = [one.numpy() for one in kept]
    assert_fails("cuda_graph::replay", "runs", lambda: graph.run(lambda: print("it ran")))
    assert all(torch.equal(one, values(seed)) for seed, one in enumerate(many))
    del kept, shared
    graph.run(lambda: print("the others fit"))
    def fail():
        raise KeyError("launch")
    try:
        graph.run(fail)
    except KeyError:
        assert float(values(7).sum()) == float(values(7).sum())
        smartswap.step()
        print("and go on")
    """
    assert run_captures(tmp_path, text) == "the others fit\nand go on\n"


def test_steps_and_updates_in_a_capture_are_the_replays(tmp_path):
    """An optimizer that is captured ends a step at each replay, and nothing of it waits."""
    text = """
    smartswap.enable("64MiB", device="host", min_block="64KiB", defer_updates="on")
    model = torch.nn.Linear(256, 256, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    def backward():
        model(torch.ones(4, 256)).sum().backward()
    for _ in range(2):
        backward()
        optimizer.step()
    assert adapter.n_put_off() > 0
    steps = smartswap.stats()["steps"]
    with captured() as graph:
        assert adapter.n_put_off() == 0, "what waited has run"
        optimizer.step()
        assert adapter.n_put_off() == 0
    assert (graph.ends_step, smartswap.stats()["steps"]) == (True, steps)
    with captured() as outer:
        graph.run(lambda: None)
    assert outer.ends_step
    with captured() as other:
        model.weight.sum()
    assert not other.ends_step
    optimizer.step()
    assert smartswap.stats()["steps"] == steps + 1
    assert adapter.n_put_off() > 0
    other.run(lambda: None)
    assert adapter.n_put_off() == 0, "a replay uses the weight"
    print("good")
    """
    assert run_captures(tmp_path, text) == "good\n"


def test_addresses_that_are_taken_in_a_capture_are_uses_of_its_replays(tmp_path):
    text = """
    smartswap.enable("16MiB", device="host", min_block="64KiB")
    lent, held, kept = values(1), values(2), values(3)
    kept.numpy()
    with captured() as graph:
        at = lent.data_ptr()
        kept.numpy()
        try:
            held.numpy()
        except RuntimeError as error:
            assert "while a CUDA graph is captured" in str(error), error
    smartswap.suspend()
    assert [one["blocks"] for one in smartswap.stats()["held"]] == [1], "nothing is lent"
    graph.run(lambda: ctypes.memset(at, 0, 4))
    values(4, 3 * MIB)
    assert lent[0] == 0 and torch.equal(lent[1:], values(1)[1:])
    print("good")
    """
    assert run_captures(tmp_path, text) == "good\n"


TRAINING = """
    torch.manual_seed(1)
    if CAP:
        smartswap.enable(CAP, device="host", min_block="64KiB", defer_updates="MODE",
                         strategy="STRATEGY")
    outside = smartswap.outside
    # A part whose work is captured: it reads a weight, and writes memory of its pool.
    weight = torch.nn.Parameter(torch.randn(512, 512) / 16)
    with outside():
        x, y, slope = torch.zeros(1024, 512), torch.zeros(1024, 512), torch.zeros(512, 512)
    def forward():
        torch.mm(x, weight.detach(), out=y)
        y.tanh_()
    def backward():
        torch.mm(x.t(), y, out=slope)
    if CAP:
        graphs = []
        for work, read in ((forward, weight), (backward, x)):
            with captured() as graph:
                work()
            graphs.append(graph)
        work = [lambda graph=graph, run=run: graph.run(run)
                for graph, run in zip(graphs, (forward, backward))]
    else:
        work = [forward, backward]
    layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    optimizer = torch.optim.AdamW([weight, *layers.parameters()], lr=1e-3)
    n_steps = 0
    while n_steps < MOST and not (CAP and smartswap.stats()["steps_by_stage"]["Stable"] > 1):
        n_steps += 1
        with outside():
            x.copy_(torch.randn(1024, 512))
        work[0]()
        loss = layers(y.clone()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        work[1]()
        weight.grad = slope.clone()
        optimizer.step()
    if CAP:
        now = smartswap.stats()
        assert now["swapped_out_bytes"] + now["recomputed_ops"] > 0, now
        assert now["steps_by_stage"]["Stable"] > 0, now
        smartswap.save_trace("trace.json")
        names = [op["name"] for op in __import__("json").load(open("trace.json"))["ops"]]
        assert names.count("cuda_graph::replay") == 2, names
    print(n_steps, loss.item().hex(), weight.sum().item().hex(),
          [parameter.sum().item().hex() for parameter in layers.parameters()])
"""


@pytest.mark.parametrize(("mode", "strategy"), [("off", "joint"), ("on", "swap")])
def test_training_around_replays_gives_the_same_bits(tmp_path, mode, strategy):
    def train(cap, most):
        text = CAPTURE + TRAINING.replace("CAP", repr(cap)).replace("MOST", str(most))
        return run(tmp_path, text.replace("MODE", mode).replace("STRATEGY", strategy))

    # Plans are made beside the training, so how many steps a search takes depends on the machine.
    capped = train("24MiB", 400)
    assert capped == train(None, capped.split()[0])


class Notes:
    """What an adapter's graph is asked for."""

    def __init__(self):
        self.calls = []
        self.ends_step = True

    def begin(self):
        self.calls.append("begin")

    def end(self):
        self.calls.append("end")

    def run(self, launch):
        self.calls.append("run")
        launch()


class FakeGraph:
    """As torch.cuda.CUDAGraph."""

    fails = False

    def __init__(self):
        self.calls = []

    def capture_begin(self, pool=None, capture_error_mode="global"):
        if self.fails:
            raise RuntimeError("not now")
        self.calls.append(("capture_begin", pool, capture_error_mode))

    def capture_end(self):
        self.calls.append("capture_end")
        if self.fails:
            raise RuntimeError("not captured")

    def instantiate(self):
        self.calls.append("instantiate")

    def replay(self):
        self.calls.append("replay")


def test_captures_and_replays_of_pytorchs_own_graphs_are_seen():
    made, steps = [], []

    class Adapter:
        @staticmethod
        def Graph():  # noqa: N802 - it is a class.
            made.append(Notes())
            return made[-1]

    before = dict(vars(FakeGraph))
    graphs = CapturedGraphs(Adapter, lambda: steps.append(len(made)))
    graphs.install("host", FakeGraph)
    assert dict(vars(FakeGraph)) == before, "there are no graphs on other devices"
    earlier = FakeGraph()
    graphs.install("cuda:0", FakeGraph)
    earlier.replay()
    assert earlier.calls == ["replay"] and not steps
    graph = FakeGraph()
    graph.capture_begin("pool", capture_error_mode="relaxed")
    graph.capture_end()
    graph.instantiate()
    assert not steps
    graph.replay()
    graph.replay()
    begun = ("capture_begin", "pool", "relaxed")
    assert graph.calls == [begun, "capture_end", "instantiate", "replay", "replay"]
    assert made[0].calls == ["begin", "end", "run", "run", "run"] and steps == [1, 1]
    failing = FakeGraph()
    failing.fails = True
    with pytest.raises(RuntimeError, match="not now"):
        failing.capture_begin()
    with pytest.raises(RuntimeError, match="not captured"):
        failing.capture_end()
    assert made[1].calls == ["begin", "end"]
    graphs.remove()
    assert dict(vars(FakeGraph)) == before
