#!/usr/bin/env bash
# Measures an archive of many workloads: many.sh CHAKRAM [LISTED] [CHECKED]
#
# Lists LISTED workloads (10,000) that were added one by one and merged into one segment, and checks the predictions of
# CHECKED small workloads (1,000). Prints user, system and wall-clock seconds.
set -euo pipefail
chakram="$1"
listed="${2:-10000}"
checked="${3:-1000}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cd "$folder"
TIMEFORMAT='%U s user, %S s system, %R s on the clock'
"$chakram" generate data-parallel --ranks 4 --layers 1 -o job/job -q > said
machine=dgx-h100

# Archives with a hundred workloads each, which one command merges.
parts=()
for ((part = 0; part < (listed + 99) / 100; part++)); do
    "$chakram" archive create "part$part.etz" -q
    for ((i = part * 100; i < (part + 1) * 100 && i < listed; i++)); do
        "$chakram" archive add "part$part.etz" job/job --name "job$i" --set gpu=h100 --set step="$i" \
            --set framework="2.$((i % 12))" --set owner=ci -q > said
    done
    parts+=("part$part.etz")
done
"$chakram" archive create all.etz -q
"$chakram" archive merge all.etz "${parts[@]}" -q > said
echo "a list of $listed workloads, which a merge brought together:"
time "$chakram" archive list all.etz > said
tail -1 said
echo "of those of which a question holds:"
time "$chakram" archive list all.etz --where 'gpu = h100 and framework >= 2.10' > said
tail -1 said

"$chakram" archive create check.etz -q
"$chakram" archive merge check.etz "${parts[@]:0:$(((checked + 99) / 100))}" -q > said
"$chakram" archive baseline check.etz -m "$machine" --reason 'first baseline' -q > said
echo "a check of $(wc -l < said) predictions, 2 at a time:"
time "$chakram" archive check check.etz --threads 2 -q > said
tail -1 said
