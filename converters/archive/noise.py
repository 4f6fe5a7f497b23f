#!/usr/bin/env python3
"""Measures how compressible the data of further ranks is: noise.py ARCHIVE.

Prints, for each column of the chunks that have a base: the number of values; the minimum number of bits that their differences
from the prediction take if they are independent (the entropy of their lengths, plus the bits below the leading one); and the
share of the bits below the leading one, with their entropy. An entropy of 1 is noise, which no compressor can reduce."""
import collections, math, sys
from read_archive import segments, varint

def entropy(counts):
    whole = sum(counts.values())
    return -sum(n / whole * math.log2(n / whole) for n in counts.values()) if whole else 0.0

def residuals(plain, templates, sequence):
    """Yields the number of each column and the zigzag differences of its values."""
    count, at = varint(plain, 0)
    _, at = varint(plain, at)
    new, at = varint(plain, at)
    for _ in range(new):
        size, at = varint(plain, at)
        at += size
    lengths = collections.Counter(n for number in sequence for kind, n in templates[number] if kind in (1, 4))
    width, at = plain[at + 1], at + 2
    yield -1, [sum(plain[at + plane * count + i] << 8 * plane for plane in range(width)) for i in range(count)]
    at += width * count
    while at < len(plain):
        number, at = varint(plain, at)
        predictor, at = plain[at], at + 1
        for _ in range({7: 1, 8: 2}.get(predictor, 0)):
            _, at = varint(plain, at)
        width, n, at = plain[at], lengths[number], at + 1
        yield number, [sum(plain[at + plane * n + i] << 8 * plane for plane in range(width)) for i in range(n)]
        at += width * n

def names(templates):
    """Names each column after the attribute or field that contains its values."""
    found = {}
    for ops in templates:
        for (kind, before), (slot, column) in zip(ops, ops[1:]):
            if slot in (1, 4) and kind == 0 and column not in found:
                text = bytes(c for c in before[:-1] if 32 < c < 127).decode()
                found[column] = text if len(before) > 3 else f"field {before[-1] >> 3}"
    return found

def main(path):
    records, packed, columns, named = 0, 0, {}, {}
    for segment in segments(path):
        for number, row in enumerate(segment.objects):
            for position, (_, length, coding, _, _, own, base, _) in enumerate(row["chunks"]):
                if coding != 2 or base < 0 or base == number:
                    continue
                plain, templates, sequence, _, _ = segment.chunk(number, position)
                records, packed = records + own, packed + length
                for column, values in residuals(plain, templates, sequence):
                    columns.setdefault(column, []).extend(values)
                named.update(names(templates))
    if not records:
        return print("no rank is based on another")
    print(f"{records} nodes of further ranks, {packed * 8 / records:.1f} bits each")
    print("column                 bits/node  below the leading bit  entropy of these")
    rows = []
    for column, values in columns.items():
        lengths = collections.Counter(value.bit_length() for value in values)
        below = sum(max(size - 1, 0) * n for size, n in lengths.items())
        bits = collections.Counter()
        for value in values:  # the two bits below the leading one, together
            if value.bit_length() > 3:
                bits[value >> value.bit_length() - 3 & 3] += 1
        whole = entropy(lengths) * len(values) + below
        rows.append((whole / records, below / records, entropy(bits) / 2, named.get(column, "templates")))
    for whole, below, noise, name in sorted(rows, reverse=True)[:12]:
        print(f"{name[-22:]:<22} {whole:9.2f}  {below:21.2f}  {noise:16.3f}")
    print(f"{'all':<22} {sum(r[0] for r in rows):9.2f}  {sum(r[1] for r in rows):21.2f}")

if __name__ == "__main__":
    main(*sys.argv[1:])
