#!/usr/bin/env bash
# Every native decoder under AddressSanitizer and UndefinedBehaviorSanitizer, FUZZ damaged payloads each: name, payloads, refused.
set -euo pipefail
cd "$(dirname "$0")/../.."
cmake -S native -B build/native-address -DCMAKE_BUILD_TYPE=Release -DGRACE_TESTS=ON -DGRACE_SANITIZE=address,undefined > /dev/null
cmake --build build/native-address --parallel "${JOBS:-2}" > build/native-address/log || { cat build/native-address/log; exit 1; }
build/native-address/tests/fuzz_decoders payloads "${FUZZ:-10000000}"
