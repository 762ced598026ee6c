#!/usr/bin/env bash
# All that a quarter of an hour on a GPU can show: benchmarks/gpu_quarter.sh OUT [STAGE ...]
#
# Runs the stages of benchmarks/gpu_quarter.stages, or those named, one after the other, from a bare checkout: bits, NCCL,
# streams, large tensors, what calls, buckets and steps cost, profiles. Each has a time limit of its own; one that fails or
# runs out of time stops no other. What a stage prints is in OUT as soon as it prints it, what goes wrong in OUT/NAME.log, and
# OUT/summary.txt has a line for each stage. The status is 0 if every stage has passed, 1 if one has not, 2 if nothing could
# begin, 130 or 143 after Ctrl-C or SIGTERM, which end the running stage, too. Without a GPU the stages that need one are
# skipped, and the status is 1.
#
# PYTHON: with torch for CUDA [.venv/bin/python, else python3]. SECONDS_ALL: for everything [840]. JOBS: processes that share
# the GPU in tests [16, or as many as there are processors]. ENVIRONMENT: where packages are installed that are missing, beside the
# torch that is there [build/gpu_quarter]. STAGES: another table.
set -u -o pipefail
[ $# -ge 1 ] || { echo "usage: benchmarks/gpu_quarter.sh OUT [STAGE ...]" >&2; exit 2; }
mkdir -p "$1" && OUT=$(CDPATH='' cd "$1" && pwd) && : > "$OUT/summary.txt" || { echo "OUT=$1 is no folder for files" >&2; exit 2; }
shift
cd "$(dirname "$0")/.." || exit 2
STAGES=${STAGES:-benchmarks/gpu_quarter.stages}
[ -r "$STAGES" ] || { echo "$STAGES cannot be read; STAGES names a table of stages" >&2; exit 2; }
legal=$(grep -v '^ *#' "$STAGES" | cut -d'|' -f1 | xargs)
for name in "$@"; do
    case " $legal " in *" $name "*) ;; *) echo "no stage is named so: $name; legal: $legal" >&2; exit 2 ;; esac
done
DEVICE=cuda
processors=$(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 4)
JOBS=${JOBS:-$((processors < 16 ? processors : 16))}
begin=$(date +%s)
until=$((begin + ${SECONDS_ALL:-840}))
export OUT DEVICE JOBS PYTHONUNBUFFERED=1

say() { # name, state, seconds, more
    printf '%-11s %-12s %4s s  %s\n' "$1" "$2" "$3" "$4" | tee -a "$OUT/summary.txt"
}

# ---- Python, with what the stages import -----------------------------------------------------------------------------
wanted='import grace, grace_bench, numpy, rich, typer, msgspec, psutil, pytest, pytest_timeout, xdist, hypothesis, scipy'
python=${PYTHON:-.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
"$python" -c 'import sys' > "$OUT/setup.log" 2>&1 || { cat "$OUT/setup.log" >&2; echo "PYTHON=$python does not run" >&2; exit 2; }
bad=0
if ! "$python" -c "$wanted" >> "$OUT/setup.log" 2>&1; then
    # An environment of its own over this one, with the torch that is there: pip must not bring another.
    own=${ENVIRONMENT:-build/gpu_quarter}
    pins=$OUT/pins.txt
    "$python" -c 'from importlib import metadata as m
for d in m.distributions():
    if (d.metadata["Name"] or "").lower() in ("torch", "triton", "numpy"): print(d.metadata["Name"] + "===" + d.version)' > "$pins"
    if "$python" -m venv --system-site-packages "$own" >> "$OUT/setup.log" 2>&1 &&
        timeout 240 "$own/bin/python" -m pip install --quiet -c "$pins" -e '.[bench,test]' >> "$OUT/setup.log" 2>&1; then
        python=$own/bin/python
        say setup passed $(($(date +%s) - begin)) "$python"
    else
        bad=1
        say setup failed $(($(date +%s) - begin)) "see setup.log: the stages run with what there is"
        export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
    fi
fi
# What stages call it, and the command of this package.
python() { command "$python" "$@"; }
grace() { python -c 'import sys; from grace_command import main; sys.exit(main())' "$@"; }
export -f python grace
export python
gpu=$("$python" -c 'import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else "")' 2>> "$OUT/setup.log")

# ---- stages ----------------------------------------------------------------------------------------------------------
trim() { local x=$1; x=${x#"${x%%[![:space:]]*}"}; printf '%s' "${x%"${x##*[![:space:]]}"}"; }
wants() { # name, names...
    local name=$1 other
    shift
    [ $# -gt 0 ] || return 0
    for other in "$@"; do [ "$other" != "$name" ] || return 0; done
    return 1
}

# timeout puts a stage into a process group of its own, which the terminal's Ctrl-C does not reach, and hands a signal on to it.
running=
stop() { # status
    if [ -n "$running" ]; then
        kill "$running" 2> /dev/null
        wait "$running"
        say "$name" stopped $(($(date +%s) - start)) "$file has what there was"
    fi
    say all 'not passed' $(($(date +%s) - begin)) "stopped by a signal"
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

while IFS='|' read -r name seconds needs file command <&3; do
    name=$(trim "$name")
    case $name in '' | '#'*) continue ;; esac
    wants "$name" "$@" || continue
    seconds=$(trim "$seconds") needs=$(trim "$needs") file=$(trim "$file")
    left=$((until - $(date +%s)))
    [ "$seconds" -le "$left" ] || seconds=$left
    if [ "$needs" = gpu ] && [ -z "$gpu" ]; then
        say "$name" skipped 0 "no GPU"
        bad=1
        continue
    elif [ "$seconds" -lt 1 ]; then
        say "$name" "not begun" 0 "no time is left"
        bad=1
        continue
    fi
    start=$(date +%s)
    timeout --kill-after 5 "$seconds" bash -o pipefail -c "$command" > "$OUT/$file" 2> "$OUT/$name.log" 3<&- < /dev/null &
    running=$!
    wait "$running"
    status=$?
    running=
    took=$(($(date +%s) - start))
    case $status in
        0) say "$name" passed "$took" "$file" ;;
        124 | 137) say "$name" "out of time" "$took" "$file has what there was after $seconds s" ;;
        *) say "$name" failed "$took" "status $status; $file, $name.log" ;;
    esac
    [ $status -eq 0 ] || bad=1
done 3< "$STAGES"
say all "$([ $bad -eq 0 ] && echo passed || echo 'not passed')" $(($(date +%s) - begin)) "${gpu:-no GPU}"
exit $bad
