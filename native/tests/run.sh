#!/usr/bin/env bash
# The native kernels, decoders and waiting under AddressSanitizer and UndefinedBehaviorSanitizer, then with threads under ThreadSanitizer.
# What it builds stays in build/, so that only the first time takes long.
set -euo pipefail
cd "$(dirname "$0")/../.."

build() { # SANITIZERS FOLDER OPTIONS...
    cmake -S native -B "$2" -DCMAKE_BUILD_TYPE=Release -DGRACE_TESTS=ON -DGRACE_SANITIZE="$1" "${@:3}" > /dev/null
    cmake --build "$2" --parallel "${JOBS:-2}" > "$2/log" || { cat "$2/log"; exit 1; }
}

build address,undefined build/native-address
echo "address,undefined: $(build/native-address/tests/test_wait)"
echo "address,undefined: $(build/native-address/tests/test_kernels)"

# A kernel that nobody has put into the table is a failure, too.
listed=$(build/native-address/tests/test_kernels list)
for name in $(nm -D --defined-only build/native-address/libgrace_kernels.so | sed -n 's/.* grace_\(.*\)_base$/\1/p'); do
    grep -q " $name " <<< "$listed" || { echo "native/tests/kernels.h has no case for $name" >&2; exit 1; }
done

echo "fuzzing: $(build/native-address/tests/fuzz_decoders 10)"

# All instruction sets divide work among threads by the same code: one of them is enough here.
build thread build/native-thread -DGRACE_BASE_ONLY=ON
echo "thread: $(build/native-thread/tests/test_wait)"
# forks after threads have been started: the sanitizer would refuse that the child starts threads, which it may here
echo "thread: $(TSAN_OPTIONS=die_after_fork=0 build/native-thread/tests/test_kernels threads)"
