"""Scripts that use CUDA graphs: each prints numbers that must not depend on a cap.

`python script_graphs.py parts`; the last line is the most memory that PyTorch reserved.
"""

import sys

import smartswap
import torch
from torch import nn

MIB = 1 << 20
WIDTH = 2048


def digest(tensors):
    """Numbers that differ if a bit does."""
    return [tensor.detach().double().sum().item().hex() for tensor in tensors]


def layers(count, width=WIDTH):
    blocks = (nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count))
    return [block.cuda() for block in blocks]


def batch(seed, rows=64, width=WIDTH):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator).cuda()


def away_bytes():
    """What tensors hold that is not on the device."""
    now = smartswap.stats()
    return now["allocated_bytes"]["current"] - now["active_bytes"]["current"]


def parts():
    """Four graphs of three layers each: while one runs, what the others need may be away."""
    groups = [nn.Sequential(*layers(6)) for _ in range(4)]
    static = batch(0)
    graphs, value = [], static
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for group in groups:
                group(static)
        torch.cuda.current_stream().wait_stream(side)
        for group in groups:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                value = group(value)
            graphs.append(graph)
        for turn in range(6):
            static.copy_(batch(turn))
            for graph in graphs:
                graph.replay()
            print(turn, *digest([value]))
        # Parameters change in place between replays.
        for group in groups:
            for parameter in group.parameters():
                parameter.mul_(1.01)
        for graph in graphs:
            graph.replay()
        print(*digest([value]))
    if smartswap.is_enabled():
        assert away_bytes() > 64 * MIB, smartswap.stats()


def kept():
    """The same of a graph that is kept and instantiated later, when what it copies is away."""
    copies(keep_graph=True)


def copies(keep_graph=False):
    """Copies and fills, which a graph keeps as such, of memory that is away before they are
    captured, and lies elsewhere when they run."""
    first, second = batch(1, 4096), batch(2, 4096)
    target, mask = torch.empty_like(first), batch(3, 4096) > 0
    graph = torch.cuda.CUDAGraph(keep_graph)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cat([first, second]).masked_fill_(mask.repeat(2, 1), 0.5)
    torch.cuda.current_stream().wait_stream(side)
    if smartswap.is_enabled():
        smartswap.suspend()
    with torch.cuda.graph(graph):
        target.copy_(first)
        first.zero_()
        first.add_(second)
        second.copy_(target)
        both = torch.cat([first, second]).masked_fill_(mask.repeat(2, 1), 0.5)
    if keep_graph:
        if smartswap.is_enabled():
            smartswap.suspend()
        graph.instantiate()
    for turn in range(6):
        pressure = [batch(10 + turn, 4096) for _ in range(6)]
        print(turn, *digest(pressure[-1:]))
        graph.replay()
        print(turn, *digest([first, second, target, both]))


def callables():
    """torch.cuda.make_graphed_callables: graphs forward and backward, and all else around them."""
    groups = [nn.Sequential(*layers(3)) for _ in range(4)]
    samples = [batch(0).requires_grad_(index > 0) for index in range(len(groups))]
    for index, group in enumerate(groups):
        if index % 2 == 0:
            groups[index] = torch.cuda.make_graphed_callables(group, (samples[index],))
    model = nn.Sequential(*groups, *layers(4))
    train(model)
    if smartswap.is_enabled():
        smartswap.save_trace(sys.argv[2])


def train(model, steps=16):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for turn in range(steps):
        loss = model(batch(turn)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(turn, *digest([loss]))
    print(*digest(model.parameters()))


def whole():
    """Forward, backward and optimizer in one graph: each replay is a step."""
    model = nn.Sequential(*layers(4))
    beside = [batch(100 + index, 4096) for index in range(8)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    static = batch(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(static).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    before = smartswap.stats()["steps"] if smartswap.is_enabled() else 0
    for turn in range(8):
        static.copy_(batch(turn))
        graph.replay()
        print(turn, *digest([loss]))
    print(*digest(model.parameters()), *digest(beside))
    if smartswap.is_enabled():
        assert smartswap.stats()["steps"] == before + 8, smartswap.stats()


def compiled():
    """torch.compile with graph trees."""
    replays = []
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph):
        replays.append(graph)
        replay(graph)

    torch.cuda.CUDAGraph.replay = counted
    model = nn.Sequential(*layers(16))
    train(torch.compile(model, mode="reduce-overhead"), steps=10)
    skips = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    print("replays", len(replays), "skips", skips)
    assert len(replays) >= 2 * 7 and skips == 0


def too_large():
    """What a graph needs at once does not fit."""
    many = [batch(index, 4096) for index in range(12)]
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            total = torch.zeros_like(many[0])
            for one in many:
                total.add_(one)
    except torch.OutOfMemoryError as error:
        print("must be on the device together" in str(error), "a cap of" in str(error))
    print(all(torch.equal(one, batch(index, 4096)) for index, one in enumerate(many)))


def main():
    torch.manual_seed(7)
    torch.cuda.init()
    free_bytes = torch.cuda.mem_get_info()[0]
    globals()[sys.argv[1]]()
    torch.cuda.synchronize()
    if smartswap.is_enabled():
        now = smartswap.stats()
        assert now["outside_bytes"] > 0, now
        assert now["reserved_bytes"]["peak"] <= now["limit_bytes"], now
        # The driver's own count, with the code of kernels and what graphs take for themselves.
        held_bytes = free_bytes - torch.cuda.mem_get_info()[0]
        assert held_bytes <= now["limit_bytes"] + 256 * MIB, (held_bytes, now)
    print("reserved", torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    main()
