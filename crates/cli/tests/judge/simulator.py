"""A simulator of steps under plans, written from docs/plan-format.md alone.

It shares no code with the planner, so that a test can hold both to the same figures:
python3 simulator.py TRACE PLAN LIMIT_BYTES HOST_BYTES OUT IN BOTH PAGE, rates in bytes per
microsecond; the page is the document, which names the operators that can run again.
"""

import gzip
import json
import sys

from link import Link
from step import Step


class Chunk:
    def __init__(self, size, use, copies, freed, owner):
        self.size, self.use, self.copies = size, use, copies
        self.freed, self.owner = freed, owner


class Block:
    def __init__(self):
        self.place, self.pins, self.on_host = "nowhere", 0, False
        self.use, self.used, self.born = (0.0, None), 0, object()
        self.arrival = self.departure = self.recipe = None
        self.readers, self.free_wanted, self.waits = [], False, False


def latest(waits):
    """What is over when all of these are: a use, and the copy that was issued last."""
    floor_us = max([use[0] for use, _ in waits], default=0.0)
    piece = max([use[1] for use, _ in waits if use[1] is not None], default=None)
    copies = [copy for _, copies in waits for copy in copies]
    return (floor_us, piece), [max(copies, key=lambda copy: copy.number)] if copies else []


class OutOfMemory(Exception):
    pass


class Run:
    """Steps in a row."""

    def __init__(self, step, actions, limit, host_limit, rates, both):
        self.step, self.limit, self.host_limit = step, limit, host_limit
        self.link = Link(rates, both)
        self.actions, self.planned = {}, bool(actions)
        for action in actions:
            place = (action["op"], action["phase"])
            waits = action["due"] != action["op"]
            self.actions.setdefault(place, []).append((action["kind"], action["block"], waits))
        self.blocks = [Block() for _ in step.size]
        self.free_chunks, self.held, self.resident = [], 0, 0
        self.owed = []
        self.segments, self.host, self.now_us, self.clock = 0, 0, 0.0, 0
        self.piece_ends, self.needs, self.late = [], [], []
        self.pins, self.open, self.extra_us = [], 0, 0.0
        self.put_off, self.event, self.host_us = [], 0, 0.0
        self.peaks = dict.fromkeys(["held", "resident", "host"], 0)
        self.reset()
        self.start(actions)

    def reset(self):
        self.count = dict.fromkeys("out in clean again misses rescues kept".split(), 0)
        self.again_us = self.stall_us = 0.0
        self.peaks = {"held": self.held, "resident": self.resident, "host": self.host}
        self.start_us = self.host_us = self.now_us

    def note(self):
        now = {"held": self.held, "resident": self.resident, "host": self.host}
        self.peaks = {name: max(self.peaks[name], now[name]) for name in now}

    def start(self, actions):
        away = {}
        for action in actions:
            if action["block"] in self.step.successor and action["kind"].startswith("swap"):
                away[self.step.successor[action["block"]]] = action["kind"] == "swap_out"
        self.grow(self.step.segment_bytes)
        there = [b for b in range(len(self.blocks)) if self.step.persistent[b]]
        held = sum(self.step.size[b] for b in there if self.step.held[b])
        for b in there:
            block, stays = self.blocks[b], self.step.held[b]
            held -= self.step.size[b] if stays else 0
            missing = self.held + held + self.step.size[b] - self.limit
            if stays and missing > 0:
                raise OutOfMemory(missing)
            if (stays or not away.get(b)) and missing <= 0:
                self.held += self.step.size[b]
                self.resident += self.step.size[b]
                block.place = "device"
            else:
                block.place, block.on_host = "host", True
                self.host += self.step.size[b]
        self.note()

    def run(self):
        self.reset()
        for self.event, (kind, n) in enumerate(self.step.events):
            if kind == "B":
                if self.open == 0:
                    self.await_host()
                self.boundary(n, "begin")
                self.pins.append([])
                self.open += 1
                if self.open == 1:
                    self.extra_us = 0.0
            elif kind == "E":
                self.unpin()
                self.open -= 1
                if self.open == 0:
                    self.piece(self.step.us[n] + self.extra_us)
                    if self.step.host_waits[n]:
                        self.host_us = max(self.host_us, self.now_us)
                    self.host_us += self.step.host_us[n]
                self.boundary(n, "end")
            elif kind == "A":
                self.allocate(n)
            elif kind == "F":
                self.blocks[n].free_wanted = True
                self.free_if_unread(n)
                self.count["kept"] += self.blocks[n].place == "discarded"
            elif kind == "S":
                self.grow(n)
            else:
                self.touch(n, kind)
        self.await_host()

    def await_host(self):
        self.now_us = max(self.now_us, self.host_us)

    def next_step(self):
        self.event = len(self.step.events)
        for b, block in enumerate(self.blocks):
            if block.waits:
                block.waits = False
                self.free_if_unread(b)
        for b, block in enumerate(self.blocks):
            if block.place == "discarded" and not block.free_wanted:
                self.bring_back(b, True)
        blocks = [Block() for _ in self.blocks]
        for b, block in enumerate(self.blocks):
            if b in self.step.successor:
                blocks[self.step.successor[b]] = block
            elif block.place != "nowhere":
                self.release(b)
        successor = self.step.successor
        self.put_off = [successor[b] for b in self.put_off if b in successor]
        self.blocks = blocks
        for b in range(len(blocks)):
            if self.step.persistent[b] and b not in successor.values():
                self.allocate(b)

    def boundary(self, op, phase):
        for b in self.put_off[:]:
            if b in self.put_off:
                self.put_off.remove(b)
                if not self.bring_back(b, False):
                    self.put_off.append(b)
        for kind, b, waits in self.actions.get((op, phase), []):
            block = self.blocks[b]
            can_leave = not block.pins and not self.step.held[b]
            if kind == "swap_out" and block.place == "device" and can_leave:
                self.host_us += self.step.host_move_us
                self.swap_out(b)
            elif kind == "discard" and block.place == "device" and can_leave:
                block.waits = self.discard(b) and waits and not block.readers
            elif kind == "swap_in" and block.place == "host" and b not in self.put_off:
                self.host_us += self.step.host_move_us
                if not self.bring_back(b, False):
                    self.put_off.append(b)
            elif kind == "replay" and block.place == "discarded":
                self.bring_back(b, True)

    def touch(self, b, kind):
        block = self.blocks[b]
        while kind in "WM" and block.readers:
            self.count["misses"] += 1
            self.bring_back(block.readers[0], True)
        asked = block.place == "device" or b in self.put_off
        self.count["misses"] += not asked
        self.reach(b)
        self.use(b, kind)
        self.pin(b)

    def reach(self, b):
        if self.blocks[b].place != "device":
            self.bring_back(b, True)
        self.needs.append(self.blocks[b].arrival)

    def use(self, b, kind):
        self.clock += 1
        self.blocks[b].use, self.blocks[b].used = self.present(), self.clock
        if kind in "WM":
            self.drop_host_copy(b)

    def present(self):
        return (self.now_us, len(self.piece_ends) if self.pins else None)

    def pin(self, b):
        self.blocks[b].pins += 1
        self.pins[-1].append(b)

    def unpin(self):
        for b in self.pins.pop():
            self.blocks[b].pins -= 1

    def drop_host_copy(self, b):
        if self.blocks[b].on_host:
            self.blocks[b].on_host = False
            self.host -= self.step.size[b]

    def allocate(self, b):
        self.needs += self.take(self.step.size[b], True).copies
        self.blocks[b] = Block()
        self.settle(b)
        self.use(b, "A")
        if self.pins:
            self.pin(b)

    def grow(self, size):
        more = size - self.segments
        if more > 0:
            self.needs += self.new_memory(more, True, False).copies
            self.segments = size
            self.resident += more
            self.note()

    def settle(self, b):
        self.blocks[b].place = "device"
        self.resident += self.step.size[b]
        self.note()

    def vacate(self, b, copies, freed):
        block = self.blocks[b]
        owner = None if freed else block.born
        self.give(Chunk(self.step.size[b], block.use, copies, freed, owner))

    def give(self, chunk):
        self.free_chunks.append(chunk)
        self.resident -= chunk.size

    def free_if_unread(self, b):
        block = self.blocks[b]
        if block.free_wanted and not block.readers and not block.waits:
            if block.place == "discarded":
                self.read_no_more(b)
            self.release(b)

    def release(self, b):
        block = self.blocks[b]
        if block.place == "device":
            self.vacate(b, [block.arrival], True)
        self.drop_host_copy(b)
        if b in self.put_off:
            self.put_off.remove(b)
        block.place, block.free_wanted = "nowhere", False

    def read_no_more(self, b):
        for i in self.blocks[b].recipe[3]:
            self.blocks[i].readers.remove(b)
            self.free_if_unread(i)

    def swap_out(self, b):
        block, size = self.blocks[b], self.step.size[b]
        copies = [block.arrival]
        if block.on_host:
            self.count["clean"] += 1
        else:
            for other, clean in enumerate(self.blocks):
                if self.host + size <= self.host_limit:
                    break
                if clean.place == "device" and clean.on_host:
                    self.drop_host_copy(other)
            if self.host + size > self.host_limit:
                return False
            block.on_host = True
            self.host += size
            self.note()
            block.departure = self.issue(0, b, block.use, [block.arrival])
            block.arrival = block.departure
            self.count["out"] += size
            copies = [block.departure]
        self.vacate(b, copies, False)
        block.place = "host"
        return True

    def discard(self, b):
        block, recipe = self.blocks[b], self.step.recipe(b, self.event)
        if recipe is None or not all(map(self.is_there, recipe[3])):
            return False
        self.drop_host_copy(b)
        self.vacate(b, [block.arrival], False)
        block.place, block.recipe = "discarded", recipe
        for i in recipe[3]:
            self.blocks[i].readers.append(b)
            self.blocks[i].waits = False
        return True

    def is_there(self, b):
        block = self.blocks[b]
        if block.free_wanted:
            return block.place == "discarded"
        return block.place != "nowhere"

    def issue(self, direction, b, use, after):
        floor_us, piece = use
        ended = piece is not None and piece < len(self.piece_ends)
        floor_us = max(floor_us, self.now_us, self.piece_ends[piece] if ended else 0.0)
        copy = self.link.issue(direction, self.step.size[b], floor_us, after)
        if piece is not None and not ended:
            self.late.append(copy)
        return copy

    def bring_back(self, b, must):
        block, size = self.blocks[b], self.step.size[b]
        discarded = block.place == "discarded"
        own = [c for c in self.free_chunks if c.owner is block.born and not discarded]
        if own:
            self.free_chunks.remove(own[-1])
        else:
            chunk = self.take(size, must)
            if chunk is None:
                return False
        if b in self.put_off:
            self.put_off.remove(b)
        self.settle(b)
        if discarded:
            self.needs += chunk.copies
            block.arrival, block.waits = None, False
            self.replay(b)
        elif not own:
            block.arrival = self.issue(1, b, chunk.use, [block.departure, *chunk.copies])
            self.count["in"] += size
        return True

    def replay(self, b):
        _, _, us, inputs, scratch = self.blocks[b].recipe
        self.pins.append([])
        self.pin(b)
        for i in inputs:
            self.reach(i)
            self.use(i, "R")
            self.pin(i)
        for size in scratch:
            self.needs += self.take(size, True).copies
            self.resident += size
            self.note()
        self.use(b, "W")
        for size in scratch:
            self.give(Chunk(size, self.present(), [], True, None))
        self.count["again"] += 1
        self.again_us += us
        self.host_us += self.step.host_replay_us
        if self.open:
            self.extra_us += us
        else:
            self.piece(us)
        self.unpin()
        self.read_no_more(b)
        self.free_if_unread(b)

    def piece(self, us):
        self.await_host()
        needs, self.needs = [copy for copy in self.needs if copy], []
        start_us = max([self.now_us, *map(self.link.end_us, needs)])
        self.stall_us += start_us - self.now_us
        self.now_us = start_us + us
        for copy in self.late:
            copy.floor_us = max(copy.floor_us, self.now_us)
        self.late = []
        self.piece_ends.append(self.now_us)

    def take(self, size, must):
        return self.free_chunk(size) or self.new_memory(size, must, True)

    def free_chunk(self, size):
        chunks = [chunk for chunk in self.free_chunks if chunk.size == size]
        freed = [chunk for chunk in chunks if chunk.freed]
        if not chunks:
            return None
        chunk = freed[-1] if freed else chunks[0]
        self.free_chunks.remove(chunk)
        return chunk

    def new_memory(self, size, must, exact):
        victims = None
        while True:
            missing = self.held + size - self.limit
            missing -= sum(chunk.size for chunk in self.free_chunks)
            if missing <= 0:
                return self.new_chunk(size)
            if not must:
                return None
            if victims is None:
                victims = self.victims()
                fresh = True
            while True:
                if not victims:
                    raise OutOfMemory(missing)
                b = victims.pop(0)
                if self.swap_out(b) or self.discard(b):
                    break
            self.count["rescues"] += fresh
            fresh = False
            chunk = self.free_chunk(size) if exact else None
            if chunk:
                return chunk

    def new_chunk(self, size):
        nobodys = self.limit - self.held - sum(part for part, _ in self.owed)
        waits, given = [], 0
        while self.held + size > self.limit:
            old = self.free_chunks.pop(0)
            self.held -= old.size
            given += old.size
            waits.append((old.use, [copy for copy in old.copies if copy]))
        self.held += size
        self.note()
        if given > size:
            self.owed.append((given - size, latest(waits)))
        missing = size - given - nobodys
        while given <= size and missing > 0:
            part, wait = self.owed.pop(0)
            waits.append(wait)
            if part > missing:
                self.owed.insert(0, (part - missing, wait))
            missing -= part
        use, copies = latest(waits)
        return Chunk(size, use, copies, True, None)

    def victims(self):
        there = [b for b, x in enumerate(self.blocks) if x.place == "device" and not x.pins]
        there = [b for b in there if not self.step.held[b]]
        if self.planned:
            return sorted(there, key=lambda b: (-self.step.next_use(b, self.event), b))
        return sorted(there, key=lambda b: (self.blocks[b].used, b))

    def figures(self):
        return {
            "peak_bytes": self.peaks["resident"],
            "held_bytes_peak": self.peaks["held"],
            "host_bytes_peak": self.peaks["host"],
            "step_us": self.now_us - self.start_us,
            "stall_us": self.stall_us,
            "swapped_out_bytes": self.count["out"],
            "swapped_in_bytes": self.count["in"],
            "clean_swap_outs": self.count["clean"],
            "recomputed_ops": self.count["again"],
            "recomputed_us": self.again_us,
            "misses": self.count["misses"],
            "rescues": self.count["rescues"],
            "kept_freed": self.count["kept"],
        }


def load(path):
    data = open(path, "rb").read()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def main(trace, plan, limit, host, out, back, both, page):
    names = open(page).read().split("```text\n")[1].split("```")[0].split()
    body = load(plan)["body"]
    step = Step(load(trace), set(names), body.get("part_bytes"))
    rates = [float(out), float(back)]
    try:
        run = Run(step, body["actions"], int(limit), int(host), rates, float(both))
        run.run()
        run.next_step()
        run.run()
        answer = {**run.figures(), "infeasible": None}
    except OutOfMemory as short:
        answer = {"infeasible": short.args[0]}
    answer["signature"] = step.signature
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
