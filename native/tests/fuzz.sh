#!/usr/bin/env bash
# Every native decoder under AddressSanitizer and UndefinedBehaviorSanitizer, FUZZ damaged payloads each, divided among JOBS
# processes (all cores) with seeds from SEED on: name, payloads, refused.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)} seed=${SEED:-1}
each=$(((${FUZZ:-10000000} + jobs - 1) / jobs))
cmake -S native -B build/native-address -DCMAKE_BUILD_TYPE=Release -DGRACE_TESTS=ON -DGRACE_SANITIZE=address,undefined > /dev/null
cmake --build build/native-address --parallel "$jobs" > build/native-address/log || { cat build/native-address/log; exit 1; }

found=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; rm -rf "$found"' EXIT
running=()
for ((i = 0; i < jobs; i++)); do
    build/native-address/tests/fuzz_decoders payloads "$each" "$((seed + i))" > "$found/$i" &
    running+=($!)
done
for one in "${running[@]}"; do wait "$one"; done
awk '!($1 in tried) { names[++n] = $1 } { tried[$1] += $2; refused[$1] += $3 }
     END { for (i = 1; i <= n; i++) print names[i], tried[names[i]], refused[names[i]] }' "$found"/*
