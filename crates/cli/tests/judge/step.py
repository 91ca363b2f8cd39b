"""A recorded step, read as docs/plan-format.md says: operators, blocks, events, recipes."""

import parts

UNIT = 2 << 20
LARGE = 8 << 20
CALLERS = ("aten::cross_entropy_loss", "aten::nll_loss_nd")
MASK = (1 << 64) - 1


def up(number, unit):
    return -(-number // unit) * unit


class Step:
    """Operators, blocks and events of a trace."""

    def __init__(self, trace, names, part_bytes=None):
        self.trace, self.ops, self.tensors = trace, trace["ops"], trace["tensors"]
        if "events" in trace:
            self.segment_bytes = trace["segment_bytes"]
            self.again = [op["replayable"] for op in self.ops]
            self.size = [tensor["bytes"] for tensor in self.tensors]
            self.held = [tensor.get("held", False) for tensor in self.tensors]
            self.persistent = [tensor["origin"] == "persistent" for tensor in self.tensors]
            self.events = [(text[0], int(text[1:])) for text in trace["events"]]
            self.hash = int(trace["signature"], 16)
        else:
            self.again = self.runs_again(names)
            self.read_record()
        if part_bytes is not None:
            parts.split(self, part_bytes, self.take_in)
        self.signature = f"{self.hash:016x}"
        self.index()

    def take_in(self, value):
        s = (self.hash << 5 | self.hash >> 59) & MASK
        s = (s ^ value) * 0x9E3779B97F4A7C15 & MASK
        self.hash = s ^ s >> 32

    def runs_again(self, names):
        ops = self.ops
        around, stack, again = [], [], []
        for op in ops:
            del stack[op["depth"] :]
            around.append(stack[-1] if stack else None)
            stack.append(len(around) - 1)
        open_ = []
        for n, op in enumerate(ops):
            reached = around[n] is None or open_[around[n]]
            space, _, plain = op["name"].partition("::")
            known = space == "aten" and plain.split(".")[0] in names
            again.append(known and reached and op["depth"] < 16)
            calls = op["name"] in CALLERS
            calls |= op["name"].startswith("autograd::engine::evaluate_function: ")
            open_.append(reached and (known or calls))
        return again

    def read_record(self):
        ops, tensors = self.ops, self.tensors
        large = [t for t, tensor in enumerate(tensors) if tensor["bytes"] >= LARGE]
        large.sort(key=lambda t: (tensors[t]["alloc"], t))
        block = {t: b for b, t in enumerate(large)}
        self.size = [up(tensors[t]["bytes"], UNIT) for t in large]
        self.held = [False] * len(large)
        self.persistent = [tensors[t]["alloc"] < 0 for t in large]
        born = [[] for _ in range(len(ops) + 1)]
        died = [[] for _ in range(len(ops) + 1)]
        small = most = 0
        for t, tensor in enumerate(tensors):
            if tensor["alloc"] >= 0:
                born[tensor["alloc"]].append(t)
            elif t not in block:
                small += up(tensor["bytes"], 512)
            if tensor["free"] >= 0:
                died[tensor["free"]].append(t)
        most = small
        self.events, made, open_ = [], set(), []
        self.hash = 0
        for b, size in enumerate(self.size):
            if self.persistent[b]:
                self.take_in(size)
        for n in range(len(ops) + 1):
            for t in born[n]:
                if t in block:
                    self.events.append(("A", block[t]))
                    self.take_in(self.size[block[t]])
                else:
                    small += up(tensors[t]["bytes"], 512)
            most = max(most, small)
            depth = ops[n]["depth"] if n < len(ops) else 0
            while open_ and ops[open_[-1]]["depth"] >= depth:
                self.end(open_.pop(), block, made)
            for t in died[n]:
                if t in block:
                    self.events.append(("F", block[t]))
                else:
                    small -= up(tensors[t]["bytes"], 512)
            if n == len(ops):
                break
            self.events.append(("B", n))
            name = 0xCBF29CE484222325
            for byte in ops[n]["name"].encode():
                name = (name ^ byte) * 0x100000001B3 & MASK
            self.take_in(name)
            open_.append(n)
            writes = list(dict.fromkeys(ops[n]["writes"]))
            for t in dict.fromkeys(ops[n]["reads"]):
                if t in block and t not in writes:
                    self.events.append(("R", block[t]))
            for t in writes:
                made.discard(t)
                if t in block:
                    self.events.append(("M", block[t]))
        self.segment_bytes = up(most, UNIT)

    def end(self, n, block, made):
        op = self.ops[n]
        plain = op["name"].startswith(("aten::empty", "aten::new_empty"))
        for t in dict.fromkeys([] if plain else op["outputs"]):
            if t in op["writes"] or self.tensors[t]["alloc"] <= n or t in made:
                continue
            if self.again[n]:
                made.add(t)
            if t in block:
                self.events.append(("W", block[t]))
        self.events.append(("E", n))

    def index(self):
        count = len(self.size)
        self.uses = [[] for _ in range(count)]
        self.free_at = [None] * count
        for e, (kind, n) in enumerate(self.events):
            if kind in "ARWM":
                self.uses[n].append((e, kind))
            elif kind == "F":
                self.free_at[n] = e
        last = [b for b in range(count) if self.free_at[b] is None]
        first = [b for b in range(count) if self.persistent[b]]
        if [self.size[b] for b in first] == [self.size[b] for b in last]:
            self.successor = dict(zip(last, first))
        else:
            self.successor = {b: b for b in last if self.persistent[b]}
        self.find_times()
        self.find_recipes()

    def find_times(self):
        ops = self.ops
        own = [[False, set()] for _ in ops]
        around, open_ = [None] * len(ops), []
        for kind, n in self.events:
            if kind == "B":
                around[n] = open_[-1] if open_ else None
                open_.append(n)
            elif kind == "E":
                open_.pop()
            elif kind in "RWM":
                own[open_[-1]][0] |= kind != "R"
                own[open_[-1]][1].add(n)
        size = [sum(self.size[b] for b in blocks) if w else 0 for w, blocks in own]
        called = [0] * len(ops)
        for n in reversed(range(len(ops))):
            size[n] = called[n] or size[n]
            if around[n] is not None:
                called[around[n]] += size[n]
        self.us = [float(op["us"]) for op in ops]
        self.host_us = [op.get("host_us", 0.0) for op in ops]
        self.host_waits = [op.get("host_waits", False) for op in ops]
        known = any(self.host_us)
        self.host_replay_us = (self.trace.get("host_replay_us", 0.0) or 100.0) if known else 0.0
        self.host_move_us = (self.trace.get("host_move_us", 0.0) or 20.0) if known else 0.0
        for n, caller in enumerate(around):
            if caller is not None:
                self.us[n] = self.us[caller] * (size[n] / max(called[caller], 1))

    def find_recipes(self):
        self.recipes = [[] for _ in self.size]
        open_ = []
        for e, (kind, n) in enumerate(self.events):
            if kind == "B":
                open_.append((e, []))
            elif kind in "WM":
                open_[-1][1].append(n)
            elif kind == "E":
                begin, outputs = open_.pop()
                if self.again[n] and outputs:
                    self.keep_recipe(n, begin, e, sorted(set(outputs)))

    def keep_recipe(self, op, begin, end, outputs):
        inputs, made = [], []
        for kind, b in self.events[begin:end]:
            if kind not in "ARWM":
                continue
            own = not self.persistent[b] and self.uses[b][0][0] > begin
            if kind == "M" and not own:
                return
            if kind in "AW" and b not in made:
                made.append(b)
            if kind == "R" and not own and b not in inputs:
                inputs.append(b)
        if any(b in made or self.held[b] for b in inputs):
            return

        def good_until(b):
            writes = (e for e, kind in self.uses[b] if e > end and kind in "WM")
            return next(writes, len(self.events))

        for out in outputs:
            if not self.held[out]:
                scratch = [self.size[b] for b in made if b != out]
                until = min(map(good_until, [*inputs, out]))
                self.recipes[out].append((end, until, self.us[op], inputs, scratch))

    def recipe(self, b, event):
        past = [recipe for recipe in self.recipes[b] if recipe[0] <= event]
        return past[-1] if past and past[-1][1] > event else None

    def next_use(self, b, event):
        for e, _ in self.uses[b]:
            if e >= event:
                return e
        if self.persistent[b] and self.uses[b]:
            return self.uses[b][0][0] + len(self.events)
        return float("inf")
