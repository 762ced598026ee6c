#!/usr/bin/env bash
# Python's tests of native kernels, alone and in whole exchanges, over kernels built with AddressSanitizer and
# UndefinedBehaviorSanitizer: what Grace or a test hands over shorter than it says is seen. Arguments are those of pytest.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python} compiler=${CXX:-c++}
cmake -S native -B build/native-address -DCMAKE_BUILD_TYPE=Release -DGRACE_TESTS=ON -DGRACE_SANITIZE=address,undefined > /dev/null
cmake --build build/native-address --parallel "${JOBS:-2}" --target grace_kernels > build/native-address/log || { cat build/native-address/log; exit 1; }

# The sanitizers' own libraries have to be there before Python; the one of C++, for its exceptions, with them.
preload=
for name in libasan.so libubsan.so libstdc++.so; do
    file=$("$compiler" -print-file-name="$name")
    [ -f "$file" ] || { echo "$compiler has no $name: this needs GCC" >&2; exit 1; }
    preload+="$file "
done
sanitized() { # Python keeps what it never frees, and lays small things out by itself
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc LD_PRELOAD=$preload "$python" "$@"
}
if sanitized -m tests.sanitized 2> /dev/null; then
    echo "a read of two numbers past a tensor was not seen" >&2
    exit 1
fi

# Not captured: the report comes from the process that ends. Triton's kernels are none of these.
[ $# -gt 0 ] || set -- -q -m "not night" tests/golden tests/unit/kernels tests/laws --ignore-glob='*triton*' \
    --ignore-glob='*test_many*' --ignore-glob='*test_counted.py' --ignore-glob='*test_launches.py'
sanitized -m pytest -p tests.sanitized -p no:cacheprovider -p no:xdist --capture=sys --timeout 0 "$@"
