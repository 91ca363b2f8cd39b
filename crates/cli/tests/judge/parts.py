"""Operators over lists of tensors in parts, as docs/plan-format.md says."""

LISTS = {
    "_fused_adam_": (4, 5),
    "_fused_adamw_": (4, 5),
    "_fused_sgd_": (3, 2),
    "_fused_adagrad_": (3,),
}
SCALER = "_amp_foreach_non_finite_check_and_unscale_"


def split(step, part_bytes, take_in):
    """Replaces operators and events of a step."""
    ops, again, events, numbers = [], [], [], []
    position = 0
    while position < len(step.events):
        kind, n = step.events[position]
        position += 1
        if kind != "B":
            events.append((kind, numbers[n] if kind == "E" else n))
            continue
        numbers.append(len(ops))
        touches = inside(step.events, position, n)
        parts = parts_of(step, n, touches, part_bytes)
        if not parts:
            events.append(("B", len(ops)))
            ops.append(step.ops[n])
            again.append(step.again[n])
            continue
        position += len(touches) + 1
        total = sum(size for _, size in parts)
        for blocks, size in parts:
            take_in(len(ops))
            take_in(size)
            touched = [event for event in touches if event[1] in blocks]
            events += [("B", len(ops)), *touched, ("E", len(ops))]
            times = {key: step.ops[n].get(key, 0.0) * (size / total) for key in ("us", "host_us")}
            ops.append({**step.ops[n], **times})
            again.append(False)
    step.ops, step.again, step.events = ops, again, events


def inside(events, position, op):
    """What is between begin and end of an operator, if that is touches alone."""
    end = position
    while events[end][0] in "RWM":
        end += 1
    return events[position:end] if events[end] == ("E", op) else []


def parts_of(step, n, touches, part_bytes):
    """The blocks and bytes of each part; nothing if the operator stays whole."""
    space, _, plain = step.ops[n]["name"].partition("::")
    plain = plain.split(".")[0]
    known = plain in LISTS or plain == SCALER or plain.startswith("_foreach_")
    if space != "aten" or not known or step.ops[n]["depth"] or step.again[n]:
        return []
    blocks = list(dict.fromkeys(b for _, b in touches))
    sizes = [step.size[b] for b in blocks]
    if sum(sizes) <= part_bytes + part_bytes // 4:
        return []
    length = length_of(plain, sizes, len({b for kind, b in touches if kind != "R"}))
    parts = []
    for i in range(length):
        place = set(blocks[i::length])
        size = sum(step.size[b] for b in place)
        if parts and parts[-1][1] + size <= part_bytes:
            parts[-1] = (parts[-1][0] | place, parts[-1][1] + size)
        else:
            parts.append((place, size))
    return parts


def length_of(plain, sizes, written):
    count = len(sizes)
    if plain in LISTS:
        lengths = [count // lists for lists in LISTS[plain] if count % lists == 0]
    else:
        lengths = [written or count]
    for length in lengths:
        if length > 1 and sizes == sizes[:length] * (count // length):
            return length
    return 0
