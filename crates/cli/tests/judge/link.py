"""The two copy engines of the simulator, which slow each other down."""

SUBMIT_US = 8.0


class Copy:
    def __init__(self, number, direction, size, floor_us, after):
        self.number, self.direction, self.size = number, direction, size
        self.floor_us, self.after, self.end_us = floor_us, after, None


class Link:
    """Copies of both directions; time goes on only as far as somebody asks."""

    def __init__(self, rates, both):
        self.rates, self.both, self.now_us, self.count = rates, both, 0.0, 0
        self.queues, self.left, self.last = [[], []], [None, None], [None, None]

    def issue(self, direction, size, floor_us, after):
        after = [copy for copy in after if copy]
        copy = Copy(self.count, direction, size, floor_us, after)
        self.count += 1
        self.queues[direction].append(copy)
        return copy

    def rate(self, direction):
        alone = self.rates[direction]
        return alone if self.left[1 - direction] is None else min(alone, self.both)

    def event_us(self, direction):
        if self.left[direction] is not None:
            return self.now_us + self.left[direction] / self.rate(direction)
        if not self.queues[direction]:
            return float("inf")
        copy = self.queues[direction][0]
        before = [*copy.after, *filter(None, [self.last[direction]])]
        if any(other.end_us is None for other in before):
            return float("inf")
        return max([copy.floor_us, *(other.end_us for other in before)]) + SUBMIT_US

    def end_us(self, copy):
        while copy.end_us is None:
            events = [self.event_us(0), self.event_us(1)]
            rates = [self.rate(0), self.rate(1)]
            next_us = max(min(events), self.now_us)
            for way in (0, 1):
                if events[way] <= next_us:
                    if self.left[way] is None:
                        self.left[way] = float(self.queues[way][0].size)
                    else:
                        self.left[way] = None
                        self.last[way] = self.queues[way].pop(0)
                        self.last[way].end_us = next_us
                elif self.left[way] is not None:
                    self.left[way] -= (next_us - self.now_us) * rates[way]
            self.now_us = next_us
        return copy.end_us
