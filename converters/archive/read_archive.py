#!/usr/bin/env python3
"""Lists an archive of chakram, or extracts a workload: read_archive.py ARCHIVE [WORKLOAD FOLDER].

Written only from docs/reference/archive-format.md; needs only the package zstandard."""
import json, os, struct, sys, zlib
from zstandard import DICT_TYPE_RAWCONTENT, ZstdCompressionDict, ZstdDecompressor

def unzstd(frame, size=0, dictionary=None):
    dictionary = dictionary and ZstdCompressionDict(dictionary, dict_type=DICT_TYPE_RAWCONTENT)
    return ZstdDecompressor(dict_data=dictionary).decompress(frame, max_output_size=size)

def varint(data, at, value=0, shift=0):
    while data[at] > 127:
        value, at, shift = value | (data[at] & 127) << shift, at + 1, shift + 7
    return value | data[at] << shift, at + 1

def put(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + put(value >> 7)

class Segment:
    def __init__(self, data, end):
        tail = data[end - 92:end]
        assert struct.unpack("<I", tail[88:])[0] == zlib.crc32(tail[:88]), "the end of a segment is damaged"
        *head, self.length, at, size, index, index_size = struct.unpack("<II4sI5Q", tail[:56])
        assert head[:3] == [0x184D2A5C, 84, b"CKEN"] and head[3] in (1, 2, 3), "no archive of version 1, 2 or 3"
        self.data = data[end - self.length:end]
        self.catalogue = json.loads(unzstd(self.data[at:at + size]))
        self.objects = json.loads(unzstd(self.data[index:index + index_size]))["objects"]

    def chunk(self, number, position):  # what the frame unpacks to; its templates, sequence, columns and coding
        at, length, coding, unpacked, _, _, *on = self.objects[number]["chunks"][position]
        base, *parts, _ = self.chunk(*on) if on[0] >= 0 else (None, [], [], {}, 0)
        plain = unzstd(self.data[at:at + length], unpacked, base)
        return (plain, *(columns(plain, *parts) if coding > 1 else ([], [], {})), coding)

    def read(self, number):
        chunks = (self.chunk(number, position) for position in range(len(self.objects[number]["chunks"])))
        return b"".join(join(*parts) if parts[-1] > 1 else plain for plain, *parts in chunks)

def template(ops, at=0):
    out = []
    while at < len(ops):
        op, at = varint(ops, at)
        kind, n = (4, (op >> 2) - 1) if op & 3 == 3 and op > 3 else (op & 3, op >> 2)
        out.append((kind, n if kind else ops[at:at + n]))
        at += 0 if op & 3 else op >> 2
    return out

def columns(data, templates, base_sequence, base):
    (count, at), templates, table, ids, records = varint(data, 0), list(templates), {}, {}, {}
    _, at = varint(data, at)
    new, at = varint(data, at)
    for _ in range(new):
        size, at = varint(data, at)
        templates.append(template(data[at:at + size]))
        at += size
    sequence, at = values(data, at, range(count), {}, enumerate(base_sequence), {}, range(count))
    for record, number in enumerate(sequence):
        for kind, n in templates[number]:
            if kind in (1, 4):
                records.setdefault(n, []).append(record)
    while at < len(data):
        number, at = varint(data, at)
        own, at = values(data, at, records[number], table, base.get(number, ()), ids, sequence)
        table[number] = list(zip(records[number], own))
        ids = dict(table[number]) if number == 0 else ids
    return templates, sequence, table

def values(data, at, records, table, base, ids, sequence):
    predictor, others, at = data[at], [], at + 1
    for _ in range({7: 1, 8: 2}.get(predictor, 0)):
        number, at = varint(data, at)
        others.append(table[number])
    width, n, at = data[at], len(records), at + 1
    waiting, last, out, before, shift, previous = [], {}, [], 0, 0, 0
    for column in others or [base]:
        waiting.append({})
        for record, value in column:
            waiting[-1].setdefault(record, []).append(value)
    for i, record in enumerate(records):
        found, *second = [queue[record].pop(0) if queue.get(record) else None for queue in waiting]
        own, shown = ids.get(record, 0), previous if found is None else found
        guess = (0, previous, own, previous + own - before, last.get(sequence[record], 0), shown,
                 previous if found is None else found + shift, (found or 0) // 1000,
                 (found or 0) + sum(value or 0 for value in second))[predictor]
        z = sum(data[at + plane * n + i] << 8 * plane for plane in range(width))
        previous = last[sequence[record]] = (guess + (z >> 1 ^ -(z & 1))) & 2**64 - 1
        before, shift = own, shift if found is None else previous - found
        out.append(previous)
    return out, at + width * n

def join(templates, sequence, table, coding):
    rest, out = {number: iter(column) for number, column in table.items()}, []
    for number in sequence:
        stack = [b""]
        for kind, n in templates[number]:
            if kind == 2:
                stack.append(b"")
            else:
                value = next(rest[n])[1] if kind in (1, 4) else 0
                stack[-1] += (n, put(value), b"", b"", b"%d" % value)[kind]
                if kind == 3:
                    stack[-2:] = [stack[-2] + put(len(stack[-1])) + stack[-1]]
        out.append((put(len(stack[0])) if coding == 2 else b"") + stack[0])
    return b"".join(out)

def segments(path):
    if os.path.isdir(path):
        line, crc = open(os.path.join(path, "manifest")).read().splitlines()
        assert int(crc, 16) == zlib.crc32(line.encode()), "the manifest is damaged"
        packs = [os.path.join(path, "packs", pack["file"]) for pack in json.loads(line)["packs"]]
        return [segment for pack in packs for segment in segments(pack)]
    data, found = open(path, "rb").read(), []
    while end := len(data) - sum(segment.length for segment in found):
        found.append(Segment(data, end))
    return found[::-1]

def main(path, name=None, folder=None):
    workloads, objects = {}, {}
    for segment in segments(path):
        workloads = {k: v for k, v in workloads.items() if k not in segment.catalogue.get("dropped", [])}
        workloads.update((workload["name"], workload) for workload in segment.catalogue["workloads"])
        objects.update((row["blake3"], (segment, number)) for number, row in enumerate(segment.objects))
    if name is None:
        return print(*sorted(workloads), sep="\n")
    files = [(row["name"], row) for row in workloads[name].get("files", [])]
    for row in workloads[name]["traces"]:
        ranks = range(row["rank"], row["rank"] + row["ranks"])
        files += [(f"{workloads[name]['prefix']}.{rank}{row['ending']}", row) for rank in ranks]
    for file, row in files:
        segment, number = objects[row["blake3"]]
        os.makedirs(os.path.dirname(os.path.join(folder, file)), exist_ok=True)
        with open(os.path.join(folder, file), "wb") as out:
            out.write(segment.read(number))

if __name__ == "__main__":
    main(*sys.argv[1:])
