"""What waits behind updates that wait: averages of weights, zeros in gradients, copies."""

from test_deferred import train

AVERAGE = """
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    P = list(model.parameters())
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(P, lr=1e-2, fused=True)
    for step in range(6):
        backward()
        optimizer.step()
        note()
        averaged.update_parameters(model)
        note()
        optimizer.zero_grad(set_to_none=False)
        note()
        if step == 3:
            print(digest([averaged(torch.arange(64).view(8, 8))]))
    print(digest(averaged.parameters()), digest(P), digest(state_of(optimizer)))
    print(waited)
"""

# Weights, an average of them to come, and what trains them.
AVERAGED = """
    P = list(model.parameters())
    weights, average = [p.detach() for p in P], [p.detach().clone() for p in P]
    optimizer = torch.optim.AdamW(P, lr=1e-2, fused=True)
"""

# Actions in any order; each seed is another program.
RANDOM = """
    import random
    def n_waiting():
        return _native.adapter().n_put_off() if CAP else 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        model = new_model()
        P = list(model.parameters())
        plain = [p.detach() for p in P]
        average = [p.clone() for p in plain]
        second = [torch.zeros_like(p) for p in plain]
        optimizer = torch.optim.AdamW(P, lr=1e-2, fused=rng.random() < 0.5)
        other = torch.optim.SGD(P[:4], lr=1e-2, momentum=0.9, foreach=True)
        seen = []
        def some(*lists):
            places = sorted(rng.sample(range(len(P)), rng.randint(1, len(P))))
            return [[values[place] for place in places] for values in lists]
        def gradients():
            have = [p.grad for p in P if p.grad is not None]
            if have:
                torch._foreach_mul_(have, 0.5)
        ACTIONS = {
            "train": (4, lambda: (backward(), optimizer.step())),
            "other": (1, lambda: (backward(), other.step())),
            "backward": (1, backward),
            "step": (1, optimizer.step),
            "average": (4, lambda: torch._foreach_lerp_(*some(average, plain), 0.1)),
            "of the average": (2, lambda: torch._foreach_lerp_(*some(second, average), 0.3)),
            "decay": (1, lambda: torch._foreach_mul_(*some(plain), 0.99)),
            "copy": (1, lambda: torch._foreach_copy_(*some(second, plain))),
            "back": (1, lambda: torch._foreach_copy_(*some(plain, average))),
            "zero": (2, lambda: optimizer.zero_grad(set_to_none=False)),
            "none": (1, optimizer.zero_grad),
            "halve": (1, gradients),
            "differ": (1, lambda: seen.extend(digest(torch._foreach_sub(average, plain)))),
            "see a weight": (1, lambda: seen.extend(digest([rng.choice(plain)]))),
            "see an average": (1, lambda: seen.extend(digest([rng.choice(average)]))),
            "see the second": (1, lambda: seen.extend(digest([rng.choice(second)]))),
            "see the state": (1, lambda: seen.extend(digest(state_of(optimizer)[:3]))),
        }
        names = list(ACTIONS)
        weights = [ACTIONS[name][0] for name in names]
        for _ in range(40):
            name = rng.choices(names, weights)[0]
            before = n_waiting()
            ACTIONS[name][1]()
            if name in ("average", "of the average", "zero", "copy"):
                waited.append(max(0, n_waiting() - before))
        print(seed, seen, digest(plain), digest(average), digest(second))
    print(waited)
"""


def test_an_average_and_zeros_wait_behind_the_updates(tmp_path):
    plain, _ = train(tmp_path, AVERAGE)
    capped, waited = train(tmp_path, AVERAGE, cap="2MiB")
    assert capped == plain
    # The first step shows that the function may wait, and the first average is a copy.
    for after_step, after_average, after_zeros in zip(*(waited[n::3] for n in range(3))):
        if after_step:
            assert after_step < after_average < after_zeros
    assert all(waited[3:])
    off, waited = train(tmp_path, AVERAGE, cap="2MiB", mode="off")
    assert (off, set(waited)) == (plain, {0})


def test_random_programs_of_what_waits_give_the_same_bits(tmp_path):
    body = RANDOM.replace("SEEDS", "60")
    plain, _ = train(tmp_path, body)
    capped, waited = train(tmp_path, body, cap="2MiB")
    assert capped == plain
    assert len(plain) == 60
    # Of the calls that may wait behind something, many did.
    assert sum(number > 0 for number in waited) > len(waited) // 4


def test_what_is_called_over_and_over_does_not_pile_up(tmp_path):
    body = AVERAGED + """
    for step in range(3):
        backward()
        optimizer.step()
    note()
    for _ in range(100):
        torch._foreach_lerp_(average, weights, 0.1)
        note()
    print(digest(average))
    print(waited)
    """
    plain, _ = train(tmp_path, body)
    capped, waited = train(tmp_path, body, cap="2MiB")
    assert capped == plain
    assert 2 * waited[0] <= max(waited) <= 12 * waited[0]


def test_what_waits_behind_an_update_that_fails_is_not_done(tmp_path):
    body = AVERAGED + """
    for step in range(3):
        backward()
        optimizer.step()
        before = digest(average)
        torch._foreach_lerp_(average, weights, 0.1)
        note()
    def broken(*_args, **_kwargs):
        raise RuntimeError("no such thing")
    real, torch._fused_adamw_ = torch._fused_adamw_, broken
    failures = 0
    for values in [state_of(optimizer)[:2], weights, *([one] for one in average)]:
        try:
            digest(values)
        except RuntimeError as error:
            failures += "no such thing" in str(error)
    torch._fused_adamw_ = real
    # Each slice fails once, and leaves its part of the average as it was.
    print(failures > 1, digest(average) == before)
    backward()
    optimizer.step()
    torch._foreach_lerp_(average, weights, 0.1)
    print(digest(average) != before)
    print(waited)
    """
    lines, waited = train(tmp_path, body, cap="2MiB")
    assert lines == ["True True", "True"]
    assert waited[-1] > 2


def test_what_cannot_wait_behind_is_done_or_fails_at_once(tmp_path):
    body = """
    P = list(model.parameters())
    optimizer = torch.optim.AdamW(P, lr=1e-2, fused=True)
    for step in range(3):
        backward()
        optimizer.step()
    average = [p.detach().clone()[:1] for p in P]
    for call in (
        lambda: torch._foreach_lerp_(P, average, 0.1),
        lambda: torch._foreach_lerp_(average, [p.detach()[:, :1] for p in P[1:2]], 0.1),
    ):
        try:
            call()
            print("nothing said")
        except RuntimeError as error:
            print(str(error).splitlines()[0])
    # Autograd goes through what it records, and so through a weight of these lists.
    optimizer.zero_grad()
    backward()
    made = [[torch.ones(p.shape) for p in P] for _ in range(2)]
    factor = torch.tensor(0.5, requires_grad=True)
    optimizer.step()
    note()
    torch._foreach_add_(made[0], P)
    note()
    optimizer.step()
    with torch.no_grad():
        torch._foreach_add_(made[1], P)
    note()
    torch._foreach_mul_(made[1], factor)
    sum(one.sum() for one in (*made[0], *made[1])).backward()
    print(digest(made[0]), digest(made[1]), digest([p.grad for p in P]), factor.grad.item().hex())
    print(waited)
    """
    plain, _ = train(tmp_path, body)
    capped, waited = train(tmp_path, body, cap="2MiB")
    assert capped == plain
    assert "nothing said" not in plain
    after_step, recorded, unrecorded = waited
    assert recorded == 0 < after_step < unrecorded
