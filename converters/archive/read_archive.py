#!/usr/bin/env python3
"""Reader of chakram's archives: read_archive.py ARCHIVE [WORKLOAD FOLDER] lists or extracts.

It needs the package zstandard and was written from docs/reference/archive-format.md alone.
"""
import json, os, struct, sys, zlib
import zstandard

END, MASK = 92, 2**64 - 1

def unzstd(frame, size=0, dictionary=None):
    raw = dictionary and zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    out = zstandard.ZstdDecompressor(dict_data=raw).decompress(frame, max_output_size=size)
    assert not size or len(out) == size, "a frame has another size"
    return out

def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at

def put(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))

class Segment:
    def __init__(self, data, end):
        tail = data[end - END:end]
        assert struct.unpack("<I", tail[88:])[0] == zlib.crc32(tail[:88]), "the end of a segment is damaged"
        magic, size, letters, version, self.length, *places = struct.unpack("<II4sI5Q", tail[:56])
        assert (magic, size, letters, version) == (0x184D2A5C, 84, b"CKEN", 1), "not an archive of version 1"
        self.data = data[end - self.length:end]
        read = lambda at, length: json.loads(unzstd(self.data[at:at + length]))
        self.catalogue, self.objects = read(*places[:2]), read(*places[2:])["objects"]

    def chunk(self, number, position):
        """What the frame of a chunk unpacks to, and its templates, sequence and columns."""
        at, length, coding, unpacked, size, _, *base = self.objects[number]["chunks"][position]
        base = self.chunk(*base) if base[0] >= 0 else (None, [], [], {})
        plain = unzstd(self.data[at:at + length], unpacked, base[0])
        return (plain, *columns(plain, *base[1:])) if coding == 2 else (plain, [], [], {})

    def read(self, number):
        rows = enumerate(self.objects[number]["chunks"])
        parts = [(row, *self.chunk(number, position)) for position, row in rows]
        return b"".join(join(*rest) if row[2] == 2 else plain for row, plain, *rest in parts)

def template(ops):
    at, out = 0, []
    while at < len(ops):
        op, at = varint(ops, at)
        kind, n = op & 3, op >> 2
        out.append((kind, ops[at:at + n] if kind == 0 else n))
        at += n if kind == 0 else 0
    return out

def columns(data, templates, base_sequence, base):
    count, _, new = 0, 0, 0
    (count, at), templates = varint(data, 0), list(templates)
    _, at = varint(data, at)
    new, at = varint(data, at)
    for _ in range(new):
        size, at = varint(data, at)
        templates.append(template(data[at:at + size]))
        at += size
    table, ids = {}, [0] * count
    sequence, at = values(data, at, range(count), {}, enumerate(base_sequence), ids, ids)
    records = {}
    for r, t in enumerate(sequence):
        for kind, n in templates[t]:
            if kind == 1:
                records.setdefault(n, []).append(r)
    while at < len(data):
        number, at = varint(data, at)
        own, at = values(data, at, records[number], table, base.get(number, ()), ids, sequence)
        table[number] = list(zip(records[number], own))
        if number == 0:
            for r, value in table[0]:
                ids[r] = value
    return templates, sequence, table

def values(data, at, records, table, base, ids, sequence):
    predictor, other, out = data[at], (), []
    at += 1
    if predictor == 7:
        number, at = varint(data, at)
        other = table[number]
    width, n, at = data[at], len(records), at + 1
    waiting = {}
    for r, value in base if predictor in (5, 6) else other:
        waiting.setdefault(r, []).append(value)
    previous = shift = before = 0
    last = {}
    for i, r in enumerate(records):
        z = sum(data[at + plane * n + i] << 8 * plane for plane in range(width))
        found = waiting[r].pop(0) if waiting.get(r) else None
        guess = [0, previous, ids[r], previous + ids[r] - before, last.get(sequence[r], 0),
                 previous if found is None else found, previous if found is None else found + shift,
                 (found or 0) // 1000][predictor]
        previous = (guess + (z >> 1 ^ -(z & 1))) & MASK
        before, last[sequence[r]] = ids[r], previous
        shift = shift if found is None else previous - found
        out.append(previous)
    return out, at + width * n

def join(templates, sequence, table):
    rest, out = {number: iter(column) for number, column in table.items()}, []
    for t in sequence:
        stack = [b""]
        for kind, n in templates[t]:
            if kind == 2:
                stack.append(b"")
            else:
                inner = put(len(stack[-1])) + stack.pop() if kind == 3 else b""
                stack[-1] += n if kind == 0 else put(next(rest[n])[1]) if kind == 1 else inner
        out.append(put(len(stack[0])) + stack[0])
    return b"".join(out)

def segments(path):
    if os.path.isdir(path):
        line, crc = open(os.path.join(path, "manifest")).read().splitlines()
        assert int(crc, 16) == zlib.crc32(line.encode()), "the manifest is damaged"
        files = [os.path.join(path, "packs", pack["file"]) for pack in json.loads(line)["packs"]]
        return [segment for file in files for segment in segments(file)]
    data, found = open(path, "rb").read(), []
    end = len(data)
    while end:
        found.insert(0, Segment(data, end))
        end -= found[0].length
    return found

def main(path, name=None, folder=None):
    workloads, objects = {}, {}
    for segment in segments(path):
        [workloads.pop(dropped, None) for dropped in segment.catalogue.get("dropped", [])]
        workloads.update((workload["name"], workload) for workload in segment.catalogue["workloads"])
        for number, row in enumerate(segment.objects):
            objects.setdefault(row["blake3"], (segment, number))
    if name is None:
        return print(*sorted(workloads), sep="\n")
    workload = workloads[name]
    files = [(row["name"], row) for row in workload.get("files", [])]
    for row in workload["traces"]:
        ranks = range(row["rank"], row["rank"] + row["ranks"])
        files += [(f"{workload['prefix']}.{rank}{row['ending']}", row) for rank in ranks]
    for file, row in files:
        segment, number = objects[row["blake3"]]
        target = os.path.join(folder, file)
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        with open(target, "wb") as out:
            out.write(segment.read(number))

if __name__ == "__main__":
    main(*sys.argv[1:])
