#!/usr/bin/env bash
# Checks gtrain on the GPU of this machine: configures and builds for it, runs every test there, compute-sanitizer over the short ones, and the
# benchmarks asked for. Writes a summary in Markdown.
#
#     scripts/gpu_check.sh [--out FILE] [--build DIR] [--no-build] [--sanitize TOOLS] [--bench LIST]
#
#   --out FILE       where the summary goes (default bench/results/<gpu>.md)
#   --build DIR      build folder (default build/gpu)
#   --no-build       use what is in the build folder
#   --no-tests       the benchmarks alone
#   --sanitize LIST  compute-sanitizer tools, comma separated (default memcheck; "none" for none)
#   --bench LIST     of eager, compiled, host, curve, cnn, ops, resnet, memory (default eager,host); those but host, cnn and memory compare with PyTorch where
#                    python3 has it.
#                    GTRAIN_DATA names the folder of Fashion-MNIST
set -uo pipefail
cd "$(dirname "$0")/.."

out="" build=build/gpu do_build=yes do_tests=yes sanitize=memcheck bench=eager,host
while [ $# -gt 0 ]; do
    case "$1" in
    --out) out=$2; shift ;;
    --build) build=$2; shift ;;
    --no-build) do_build=no ;;
    --no-tests) do_tests=no sanitize=none ;;
    --sanitize) sanitize=$2; shift ;;
    --bench) bench=$2; shift ;;
    *) sed -n '2,15p' "$0"; exit 2 ;;
    esac
    shift
done

command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 || { echo "no NVIDIA GPU answers on this machine (nvidia-smi -L)"; exit 1; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
short=$(echo "$gpu" | sed 's/NVIDIA //; s/[^A-Za-z0-9]/-/g' | tr 'A-Z' 'a-z')
[ -n "$out" ] || out=bench/results/$short.md
commit=$(git rev-parse --short HEAD 2>/dev/null || cat .commit 2>/dev/null || echo unknown)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wants() { case ",$bench," in *",$1,"*) return 0 ;; *) return 1 ;; esac; }

if [ "$do_build" = yes ]; then
    generator=""
    command -v ninja >/dev/null 2>&1 && generator="-G Ninja"
    cmake -S . -B "$build" $generator -DCMAKE_BUILD_TYPE=Release -DGTRAIN_CUDA=ON -DGTRAIN_CUDA_ARCHITECTURES=native >"$work/configure" 2>&1 &&
        cmake --build "$build" -j "$(nproc)" >"$work/build" 2>&1 || { tail -n 40 "$work/configure" "$work/build"; exit 1; }
fi

# Each executable runs all its cases in one process: starting CUDA once a case would take longer than the cases.
status=0 passed=0 failed=0 skipped=0
failures=""
for exe in "$build"/bin/*; do
    [ $do_tests = yes ] && [ -f "$exe" ] && [ -x "$exe" ] || continue
    case "$exe" in *.so* | */harness_selftest) continue ;; esac # the self-test's cases fail on purpose: ctest runs it
    "$exe" --list >/dev/null 2>&1 || continue
    case "$exe" in
    */cuda_full) # what a library does when it starts on a full card: it starts once a process
        : >"$work/log" code=0
        for name in $("$exe" --list | cut -f 1); do timeout 300 "$exe" "$name" >>"$work/log" 2>&1 || code=$?; done
        line=$(awk '/^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; s += $5 } END { print p " passed, " f " failed, " s " skipped" }' "$work/log")
        ;;
    *)
        timeout 300 "$exe" --device cuda >"$work/log" 2>&1
        code=$?
        line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$work/log" | tail -n 1)
        ;;
    esac
    set -- $(echo "$line" | tr -dc '0-9 ')
    passed=$((passed + ${1:-0})) failed=$((failed + ${2:-0})) skipped=$((skipped + ${3:-0}))
    printf '%-28s %s\n' "$(basename "$exe")" "${line:-ended with code $code}"
    if [ $code -ne 0 ]; then
        status=1
        failures="$failures$(basename "$exe") "
        grep -vE '^(ok|skip|pass)' "$work/log" | tail -n 60
        [ -n "$line" ] || failed=$((failed + 1))
    fi
done

sanitized="not run"
if [ "$sanitize" != none ] && command -v compute-sanitizer >/dev/null 2>&1; then
    sanitized=""
    for tool in $(echo "$sanitize" | tr ',' ' '); do
        errors=0
        for exe in unit_core unit_ops unit_norm unit_layouts unit_autocast unit_offload step_tests contract cuda cuda_memory nn_tests grad_tests; do
            [ -x "$build/bin/$exe" ] || continue
            # Tensors over 2^31 elements take minutes under the sanitizer; API errors are provoked on purpose and handled.
            names=$("$build/bin/$exe" --list | cut -f 1 | grep 'cuda$' | grep -vE 'D3_tensors_over|M6_changing|short_of_memory')
            # shellcheck disable=SC2086
            timeout 240 compute-sanitizer --tool "$tool" --error-exitcode 9 --report-api-errors no "$build/bin/$exe" $names >"$work/log" 2>&1
            code=$?
            if [ $code -ne 0 ]; then
                errors=$((errors + 1))
                echo "compute-sanitizer --tool $tool $exe: code $code"
                grep -E '=========' "$work/log" | head -n 40
            fi
        done
        [ $errors -eq 0 ] && sanitized="$sanitized$tool: clean; " || { sanitized="$sanitized$tool: $errors executables with errors; "; status=1; }
    done
fi

{
    echo "# $gpu"
    echo
    echo "| | |"
    echo "| --- | --- |"
    echo "| date | $(date -u +%Y-%m-%d) |"
    echo "| commit | $commit |"
    echo "| driver | $driver |"
    echo "| CUDA compiler | $(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p') |"
    echo "| libraries | $(sed -n 's/^--   CUDA *//p' "$work/configure" 2>/dev/null) |"
    echo "| tests | $passed passed, $failed failed, $skipped skipped ${failures:+(failing: $failures)} |"
    echo "| compute-sanitizer | $sanitized |"
} >"$work/summary"

if wants eager; then
    {
        echo
        echo "## Eager training step"
        echo
        python3 bench/compare.py cuda --build "$build" 2>&1
        echo
        echo '```'
        "$build/bench/train_step" --device cuda mlp64 cnn64 cnn1000 2>&1
        echo '```'
    } >>"$work/summary"
fi
if wants compiled; then
    {
        echo
        echo "## Compiled training step, fp16 with dynamic loss scaling, beside eager, PyTorch's hand-made graphs and compiler, and JAX"
        echo
        echo '```'
        for workload in mlp64 cnn64 cnn1000 wide8192 resnet256; do
            "$build/bench/compiled_step" $workload
            "$build/bench/compiled_step" --eager $workload
        done
        python3 -c 'import torch' 2>/dev/null && python3 bench/peers/torch_graph.py mlpsmall64 cnn64 cnn1000
        python3 -c 'import jax' 2>/dev/null && XLA_PYTHON_CLIENT_PREALLOCATE=false python3 bench/peers/jax_baseline.py mlpsmall64 cnn64 cnn1000 mlplarge8192
        python3 -c 'import torch' 2>/dev/null && python3 bench/peers/torch_baseline.py resnet50256:eager
        echo '```'
    } >>"$work/summary" 2>&1
fi
if wants resnet; then
    {
        echo
        echo "## ResNet-50, batch 256, fp16, whole training step, beside PyTorch's eager mode"
        echo
        echo '```'
        for checkpoint in 0 1; do
            "$build/bench/resnet" --batch 256 --precision f16 --checkpoint $checkpoint
            python3 -c 'import torch' 2>/dev/null && python3 bench/peers/torch_resnet.py --batch 256 --precision f16 --checkpoint $checkpoint
        done
        "$build/bench/resnet" --batch 256 --precision f16 --offload
        "$build/bench/norm_time" f16
        echo '```'
    } >>"$work/summary" 2>&1
fi
if wants memory; then
    {
        echo
        echo "## The memory tour (examples/memory_tour.c)"
        echo
        echo '```'
        "$build/examples/memory_tour" --device cuda
        echo
        "$build/bench/allocator_cost"
        echo
        "$build/bench/offload_time"
        echo '```'
    } >>"$work/summary" 2>&1
fi
if wants curve; then
    {
        echo
        echo "## Loss curve of the CNN, beside PyTorch from the same weights"
        echo
        echo '```'
        data=${GTRAIN_DATA:-/usr/share/datasets/fashion-mnist}
        "$build/bench/loss_curve" cuda "$data" 3 "$work/weights" >"$work/curve" && python3 bench/peers/torch_curve.py cuda "$data" 3 "$work/weights" "$work/curve"
        for precision in f16 bf16; do
            echo "$precision, ours alone: mean of the last ten means of 100 losses, and test accuracies"
            "$build/bench/loss_curve" cuda "$data" 3 "$work/weights2" $precision |
                awk '/^loss/ { n++; l[n] = $2 } /^accuracy/ { a = a " " $2 } END { for (i = n - 9; i <= n; i++) s += l[i]; print s / 10, a }'
        done
        awk '/^loss/ { n++; l[n] = $2 } /^accuracy/ { a = a " " $2 } END { for (i = n - 9; i <= n; i++) s += l[i]; print "f32:", s / 10, a }' "$work/curve"
        echo '```'
    } >>"$work/summary" 2>&1
fi
if wants host; then
    { echo; echo "## Host cost of an op call"; echo; echo '```'; "$build/bench/host_cost" --device cuda 2>&1; echo '```'; } >>"$work/summary"
fi
if wants ops; then
    {
        echo
        echo "## Pooling, batch norm and relu, beside PyTorch and cuDNN"
        echo
        echo '```'
        for dtype in f32 f16; do
            "$build/bench/op_time" cuda $dtype
            python3 -c 'import torch' 2>/dev/null && python3 bench/peers/torch_ops.py cuda $dtype
        done
        "$build/bench/cudnn_ops"
        echo '```'
    } >>"$work/summary" 2>&1
fi
if wants cnn; then
    { echo; echo "## Fashion-MNIST, examples/cnn"; echo; echo '```'; "$build/examples/cnn" --device cuda --epochs 10 ${GTRAIN_DATA:+--data "$GTRAIN_DATA"} 2>&1 | tail -n 30; echo '```'; } >>"$work/summary"
fi

mkdir -p "$(dirname "$out")"
cp "$work/summary" "$out"
cat "$out"
exit $status
