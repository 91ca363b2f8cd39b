"""The whole package on PyTorch for the CPU, where the engine drives a software device.

Each test is a process of its own: the engine is opened before the first large tensor.
"""

import json
import textwrap

from processes import START, python, run

def test_memory_that_is_away_is_read_right_by_those_beside_operators(tmp_path):
    """Twice as many tensors as fit; each way out of PyTorch meets one that is away."""
    text = """
        smartswap.enable("32MiB", device="host", min_block="1MiB")
        expected = [float(values(seed).double().sum()) for seed in range(16)]
        def fresh():
            return [values(seed) for seed in range(16)]
        tensors = fresh()
        smartswap.step()
        assert smartswap.stats()["swapped_out_bytes"] >= 24 * MIB
        numpy = tensors[0].numpy()
        assert float(numpy.astype("float64").sum()) - expected[0] < 1e-6
        assert torch.equal(torch.from_dlpack(tensors[1].__dlpack__()), values(1))
        address = tensors[2].data_ptr()
        assert (ctypes.c_float * 4).from_address(address)[3] == values(2)[3].item()
        tensors[3].untyped_storage().data_ptr()
        assert sum(t.double().sum().item() for t in tensors[4:]) - sum(expected[4:]) < 1e-6
        # What was held is still there, although all others came and went.
        assert (ctypes.c_float * 4).from_address(address)[3] == values(2)[3].item()
        assert float(numpy.astype("float64").sum()) - expected[0] < 1e-6
        del numpy
        tensors = fresh()
        assert tensors[5].tolist()[:9] == values(5)[:9].tolist()
        assert tensors[6].untyped_storage()[0] == values(6).untyped_storage()[0]
        assert torch.equal(copy.deepcopy(tensors[7]), values(7))
        assert torch.equal(pickle.loads(pickle.dumps(tensors[8])), values(8))
        assert repr(tensors[9]) == repr(values(9))
        print(smartswap.stats()["reserved_bytes"]["peak"] <= 32 * MIB)
    """
    assert run(tmp_path, text) == "True\n"


def test_saving_holds_nothing(tmp_path):
    """A checkpoint larger than the cap is written, and everything can still move after it."""
    text = """
        smartswap.enable("32MiB", device="host", min_block="1MiB")
        tensors = {str(seed): values(seed) for seed in range(16)}
        for _ in range(2):
            torch.save(tensors, "saved.pt")
            assert all(torch.equal(tensors[str(seed)], values(seed)) for seed in range(16))
            smartswap.step()
            assert smartswap.stats()["swapped_in_bytes"] >= 32 * MIB
        few = {str(seed): tensors[str(seed)] for seed in range(4)}
        torch.save(few, "old.pt", _use_new_zipfile_serialization=False)
        del tensors, few
        for name, count in (("saved.pt", 16), ("old.pt", 4)):
            loaded = torch.load(name)
            assert all(torch.equal(loaded[str(seed)], values(seed)) for seed in range(count))
        print("done")
    """
    assert run(tmp_path, text) == "done\n"


def test_swapped_tensors_do_what_tensors_do(tmp_path):
    text = """
        smartswap.enable("16MiB", device="host", host_memory="256MiB")
        start = smartswap.stats()["reserved_bytes"]["peak"]
        large = smartswap.empty_with_swapped_memory((8, MIB))
        assert smartswap.stats()["reserved_bytes"]["peak"] == start
        assert large.shape == (8, MIB) and large.is_contiguous() and large.dtype == torch.float32
        source = values(1)
        tensor = smartswap.empty_with_swapped_memory(MIB, torch.float32)
        assert tensor.copy_(source) is tensor
        is_swap = smartswap.is_swap_tensor
        assert is_swap(tensor) and is_swap(tensor.detach()) and is_swap(tensor[5:9])
        assert is_swap(tensor.view(2, -1).data)
        assert not is_swap(source) and not is_swap(tensor.clone()) and not is_swap(3)
        assert not is_swap(torch.empty(2, device="meta")) and not is_swap(tensor + 1)
        for made in (tensor.cpu(), tensor.clone(), tensor.detach(), copy.deepcopy(tensor)):
            assert torch.equal(made, source)
        assert repr(tensor) == repr(source)
        assert torch.equal((tensor * 2).add_(1), source * 2 + 1)
        module = torch.nn.Module()
        module.register_buffer("moment", tensor)
        torch.save(module.state_dict(), "saved.pt")
        assert torch.equal(torch.load("saved.pt")["moment"], source)
        tensor.zero_()
        module.load_state_dict(torch.load("saved.pt"))
        assert torch.equal(tensor, source) and is_swap(module.moment)
        assert smartswap.empty_with_swapped_memory((2, 0)).shape == (2, 0)
        assert smartswap.empty_with_swapped_memory(7, torch.bfloat16).dtype == torch.bfloat16
        try:
            smartswap.empty_with_swapped_memory((512 * MIB,))
        except RuntimeError as error:
            print(type(error).__name__)
        print(float(tensor.sum()) == float(source.sum()))
    """
    assert run(tmp_path, text).endswith("True\n")


VIRTUAL = """
    def train(how, budget, resume):
        torch.manual_seed(3)
        layers = [torch.nn.Linear(512, 512) for _ in range(6)]
        model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **how)
        if budget is not None:
            smartswap.virtual_optimizer(optimizer, budget)
        for step in range(6):
            if step == 3 and resume:
                torch.save(optimizer.state_dict(), "optimizer.pt")
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **how)
                if budget is not None:
                    smartswap.virtual_optimizer(optimizer, budget)
                optimizer.load_state_dict(torch.load("optimizer.pt"))
            model(values(step, 512).view(1, -1)).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer
    def placed(optimizer):
        return sum(
            value.nbytes
            for state in optimizer.state.values()
            for value in state.values()
            if smartswap.is_swap_tensor(value)
        )
"""


def test_virtual_optimizer_gives_the_same_bits_and_saves_the_device(tmp_path):
    text = (
        VIRTUAL
        + """
    plain = [train(how, None, False) for how in ({"fused": True}, {"foreach": True})]
    peaks = []
    for budget in (None, "all", 0.005):
        smartswap.enable("128MiB", device="host", host_memory="256MiB")
        for how, (expected, _) in zip(({"fused": True}, {"foreach": True}), plain):
            smartswap.reset_peaks()
            model, optimizer = train(how, budget, True)
            for one, other in zip(model.parameters(), expected.parameters()):
                assert torch.equal(one, other)
            if budget == "all":
                assert placed(optimizer) == 2 * sum(p.nbytes for p in model.parameters())
            if budget == 0.005:
                assert 4 * MIB < placed(optimizer) <= 0.005 * 1024 * MIB
        peaks.append(smartswap.stats()["requested_bytes"]["peak"])
        del model, optimizer, one
        gc.collect()
        smartswap.disable()
    # Twelve MiB of moments, less what is saved elsewhere.
    assert peaks[1] <= peaks[0] - 11 * MIB, peaks
    assert peaks[2] <= peaks[0] - 4 * MIB, peaks
    print("done")
    """
    )
    assert run(tmp_path, text) == "done\n"


def test_enable_and_disable(tmp_path):
    text = """
        before = (torch._foreach_add_, torch.Tensor.data_ptr, torch.Tensor.numpy)
        with smartswap.swapping(memory="64MiB", device="host"):
            assert smartswap.is_enabled()
            kept = values(1)
            try:
                smartswap.enable("64MiB")
            except smartswap.SmartSwapError as error:
                print(error)
            assert smartswap.explain()
            param = torch.nn.Parameter(torch.ones(3))
            optimizer = torch.optim.SGD([param], lr=0.1)
            param.grad = torch.ones(3)
            steps = []
            for end in (optimizer.step, smartswap.step, optimizer.step, smartswap.step):
                end()
                steps.append(smartswap.stats()["steps"])
            # Who ends steps by hand does so alone.
            assert steps == [1, 2, 2, 3], steps
            del param, optimizer, end
        assert not smartswap.is_enabled()
        assert torch.equal(kept, values(1))
        assert before == (torch._foreach_add_, torch.Tensor.data_ptr, torch.Tensor.numpy)
        try:
            smartswap.stats()
        except smartswap.SmartSwapError as error:
            print(error)
        del kept
        smartswap.enable("32MiB", device="host")
        print(smartswap.stats()["limit_bytes"] == 32 * MIB)
    """
    told = run(tmp_path, text).splitlines()
    assert "disable() first" in told[0]
    assert "call smartswap.enable" in told[1]
    assert told[2] == "True"


def test_functions_that_use_addresses_run_as_one_op(tmp_path):
    text = """
        from smartswap.pointers import _storage_data_ptr
        def floats(tensor):
            address = _storage_data_ptr(tensor.untyped_storage())
            return (ctypes.c_float * tensor.numel()).from_address(address)
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(context, x, others):
                context.save_for_backward(x)
                context.factor = others["factor"]
                y = torch.empty_like(x)
                floats(y)[:] = [2 * value for value in floats(x)]
                return y
            @staticmethod
            def backward(context, gradient):
                x, = context.saved_tensors
                result = torch.empty_like(x)
                factor = floats(context.factor)[0]
                floats(result)[:] = [
                    factor * g + 0 * value for g, value in zip(floats(gradient), floats(x))
                ]
                return result, None
        smartswap.enable("8MiB", device="host", min_block="64KiB")
        size = MIB // 4
        inputs = [values(seed, size).requires_grad_() for seed in range(10)]
        others = {"factor": torch.full((size,), 2.0)}
        outputs = [smartswap.adapt_mem_func_wrapper(Double, x, others) for x in inputs]
        for seed in (0, 4, 9):
            assert torch.equal(outputs[seed], 2 * values(seed, size))
        for seed, output in enumerate(outputs):
            output.backward(values(100 + seed, size))
        for seed in (0, 4, 9):
            assert torch.equal(inputs[seed].grad, 2 * values(100 + seed, size))
        plain = smartswap.adapt_mem_func_wrapper(lambda x, k: floats(x)[k], inputs[1].detach(), k=3)
        assert plain == values(1, size)[3].item()
        smartswap.step()
        assert smartswap.stats()["swapped_out_bytes"] > 0
        print("done")
    """
    assert run(tmp_path, text) == "done\n"


TRAIN = """
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    for step in range(5):
        loss = model(values(step, 256 * 256).view(256, 256)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item().hex())
"""


def test_command_line_runs_a_script_and_writes_the_report(tmp_path):
    text = "torch.manual_seed(1)\n" + textwrap.dedent(TRAIN)
    plain = run(tmp_path, text)
    flags = ["--memory", "16MiB", "--min-block", "64KiB", "--report", tmp_path / "report"]
    flags += ["--record", tmp_path / "trace.json", "--log-level", "info"]
    script = tmp_path / "script.py"
    done = python("-m", "smartswap", *flags, script, cwd=tmp_path)
    assert done.stdout == plain
    assert "5 steps" in done.stderr
    assert json.loads((tmp_path / "report" / "explain.json").read_text())
    page = (tmp_path / "report" / "step.html").read_text()
    assert "<svg" in page
    assert (tmp_path / "trace.json").stat().st_size > 0


def test_command_line_shows_errors_as_python_does(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import torch\ndef f():\n    raise ValueError('bad')\nf()\n")
    plain = python(script)
    done = python("-m", "smartswap", "--memory", "16MiB", script)
    assert done.returncode == plain.returncode == 1
    assert done.stderr == plain.stderr
    done = python("-m", "smartswap", "--memmory", "16MiB", script)
    assert done.returncode == 2
    assert done.stderr == "smartswap: unknown flag --memmory; did you mean --memory?\n"
    done = python("-m", "smartswap", "--device", "cuda:0", script)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "built without CUDA" in done.stderr or "no such device" in done.stderr


def test_forked_children_have_no_engine(tmp_path):
    text = """
        smartswap.enable("32MiB", device="host", min_block="1MiB")
        tensor = values(1)
        child = os.fork()
        if child == 0:
            assert not smartswap.is_enabled()
            made = values(2)
            made.numpy(), made.data_ptr()
            torch._foreach_add_([made], 1)
            os._exit(0 if torch.equal(made, values(2) + 1) else 5)
        print(os.waitpid(child, 0)[1], smartswap.is_enabled())
        assert torch.equal(tensor, values(1))
    """
    assert run(tmp_path, text) == "0 True\n"


def test_callbacks_enable_and_log(tmp_path):
    """The trainers themselves are not needed: only the classes that callbacks derive from."""
    text = """
        import types
        class Base:
            pass
        for name in ("transformers", "lightning", "lightning.pytorch"):
            sys.modules[name] = types.ModuleType(name)
        sys.modules["transformers"].TrainerCallback = Base
        callbacks = sys.modules["lightning.pytorch.callbacks"] = types.ModuleType("callbacks")
        callbacks.Callback = Base
        callback = smartswap.hugging_face_callback("32MiB", device="host")
        assert smartswap.is_enabled() and isinstance(callback, Base)
        logs = {"loss": 1.0}
        state = types.SimpleNamespace(log_history=[dict(logs)])
        kept = values(1)
        callback.on_log(None, state, None, logs=logs)
        assert logs["smartswap/device_peak_bytes"] > 0 and logs == state.log_history[0]
        callback.on_log(None, state, None)
        callback = smartswap.lightning_callback("1MiB")
        assert smartswap.stats()["limit_bytes"] == 32 * MIB
        written = []
        logger = types.SimpleNamespace(log_metrics=lambda figures, step: written.append(step))
        trainer = types.SimpleNamespace(logger=logger, global_step=4)
        callback.on_validation_start(trainer, None)
        callback.on_validation_start(trainer, None)
        callback.on_validation_end(trainer, None)
        callback.on_exception(trainer, None, ValueError())
        callback.on_train_epoch_end(trainer, None)
        smartswap.disable()
        callback.on_validation_start(trainer, None)
        callback.on_train_epoch_end(trainer, None)
        callback.on_validation_end(trainer, None)
        print(written)
    """
    assert run(tmp_path, text) == "[4]\n"


def test_ranks_of_a_launcher_have_an_engine_each(tmp_path):
    """Two ranks under torchrun, with gradients averaged between them."""
    script = tmp_path / "ranks.py"
    script.write_text(
        START
        + textwrap.dedent("""
        import hashlib, torch.distributed as dist
        dist.init_process_group("gloo")
        torch.manual_seed(1)
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
        model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
        for step in range(6):
            x = values(10 * step + dist.get_rank(), 256 * 256).view(256, 256)
            model(x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        weights = b"".join(pickle.dumps(p.tolist()) for p in model.parameters())
        lines = [None, None]
        dist.all_gather_object(lines, hashlib.sha256(weights).hexdigest())
        if dist.get_rank() == 0:
            print(len(set(lines)), lines[0])
        # Plain PyTorch aborts now and then if a rank leaves while the model is there and another
        # is still at work.
        del model, optimizer
        dist.barrier()
        dist.destroy_process_group()
        """)
    )

    def launch(*words):
        start = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
        for _ in range(3):
            done = python(*start, *words, cwd=tmp_path)
            # So ends plain PyTorch now and then, all its work done.
            if "terminate called without an active exception" not in done.stderr:
                break
        assert done.returncode == 0, done.stderr[-3000:]
        return done

    plain = launch(script)
    flags = ["--memory", "16MiB", "--min-block", "64KiB", "--report", tmp_path / "report"]
    done = launch("-m", "smartswap", *flags, script)
    assert done.stdout == plain.stdout
    assert plain.stdout.startswith("1 ")
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"rank0", "rank1"}


def test_an_operator_that_goes_on_without_memory_is_told_of(tmp_path):
    text = """
        @torch.library.custom_op("test::picky", mutates_args=())
        def picky(x: torch.Tensor) -> torch.Tensor:
            try:
                return torch.empty(16 << 20) * 0 + 2 * x
            except torch.OutOfMemoryError:
                return x + x

        smartswap.enable("12MiB", device="host", min_block="64KiB")
        x = torch.ones(1 << 16)
        for _ in range(2):
            picky(x)
        # Who is refused memory and says so is no such operator.
        try:
            torch.empty(16 << 20)
        except torch.OutOfMemoryError:
            print(smartswap.stats()["went_without_memory"])
    """
    script = tmp_path / "script.py"
    script.write_text(START + textwrap.dedent(text))
    done = python(script, cwd=tmp_path)
    assert done.stdout == "{'test::picky': 2}\n", done.stderr[-3000:]
    assert done.stderr.count("went on without") == 1
    assert "SmartSwap: test::picky found no room for 67108864 bytes" in done.stderr


def test_compiled_models_run_under_the_cap(tmp_path):
    text = """
        def train():
            torch.manual_seed(2)
            model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
            for layer in model:
                layer.compile()
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
            losses = []
            for step in range(4):
                loss = model(values(step, 512 * 256).view(512, 256)).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return losses
        plain = train()
        smartswap.enable("12MiB", device="host", min_block="64KiB")
        assert train() == plain
        assert smartswap.stats()["swapped_out_bytes"] > 0
        print("done")
    """
    assert run(tmp_path, text) == "done\n"
