#!/usr/bin/env bash
# Compares the sizes of archives of jobs with zstd applied to each file: sizes.sh CHAKRAM PREFIX...
set -euo pipefail
chakram="$1"
shift
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
echo "job raw zstd-3 default zstd-19 best"
for prefix in "$@"; do
    zstd_bytes() { for file in "$prefix".*.et; do zstd -q -c "-$1" "$file"; done | wc -c; }
    archive_bytes() {
        "$chakram" archive create "$folder/$1.etz" -q
        "$chakram" archive add "$folder/$1.etz" "$prefix" --name job --level "$1" -q > "$folder/said"
        wc -c < "$folder/$1.etz"
        rm "$folder/$1.etz"
    }
    echo "$prefix" "$(cat "$prefix".*.et | wc -c)" "$(zstd_bytes 3)" "$(archive_bytes default)" "$(zstd_bytes 19)" "$(archive_bytes best)"
done
