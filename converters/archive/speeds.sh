#!/usr/bin/env bash
# Measures the speeds of archives, in MB of traces per second of one core, including system time: speeds.sh CHAKRAM
# PREFIX...
#
# To pack means to add all jobs, each in a separate command. To unpack means to verify the archive: every object is
# unpacked and its hash is compared, but nothing is written.
set -euo pipefail
chakram="$1"
shift
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
raw="$(for prefix in "$@"; do cat "$prefix".*.et; done | wc -c)"
TIMEFORMAT='%U %S'
# Prints the MB per second of the best of five runs.
rate() {
    for _ in 1 2 3 4 5; do
        { time "$@" > "$folder/said"; } 2>&1
    done | awk -v raw="$raw" '{ t = $1 + $2; if (NR == 1 || t < best) best = t } END { printf "%.0f", raw / best / 1e6 }'
}
pack() {
    rm -f "$folder/a.etz"
    "$chakram" archive create "$folder/a.etz" -q
    number=0
    for prefix in "$@"; do
        number=$((number + 1))
        "$chakram" archive add "$folder/a.etz" "$prefix" --name "job$number" --level "$level" -q > "$folder/said"
    done
}
echo "level    packing    unpacking    of $raw bytes"
for level in plain default best; do
    echo "$level  $(rate pack "$@")  $(rate "$chakram" archive verify "$folder/a.etz" -q)"
done
