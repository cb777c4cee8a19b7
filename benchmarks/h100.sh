#!/bin/bash
# Run all measurements on a borrowed H100 within 15 minutes, in one call of about 8:
# - the GPU tests that run the scan
# - updates of size1m, size12m and size200m: Reverie's compiled graph and the author's JAX code, with two blocks and
#   the number of kernels of each
# - all kernels of size12m by name
#
#   DREAMERV3=<checkout of github.com/danijar/dreamerv3 at e3f0224> OUT=<folder> bash benchmarks/h100.sh
#
#   PYTHON      interpreter with torch for CUDA and the packages of constraints.txt (python3)
#   JAX_PYTHON  interpreter with JAX for CUDA and the rest of benchmarks/peers/requirements_jax.txt (PYTHON)
#   WHEELS      folder of wheels that are installed first, for a machine without network
#   LIMIT       seconds for tests and compilation (400). Later results are omitted
#   QUICK=1     tiny networks on a CPU, to check this script in a minute or two
#
# Results in OUT: updates.json, kernels_size12m.tsv, gpu_tests.log, run.log. The results are printed last.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${DREAMERV3:?Set DREAMERV3 to a checkout of github.com/danijar/dreamerv3.}" "${OUT:?Set OUT to a folder.}"
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"
OUT=$(realpath "$OUT")
export PYTHONUNBUFFERED=1
if [ -n "${WHEELS:-}" ]; then
    site=$(mktemp -d)
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$WHEELS"/*.whl
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
"$PYTHON" -c "import heapwatch, reverie" 2>"$OUT/run.log" ||
    "$PYTHON" -m pip install -q --no-index --no-deps --no-build-isolation -e packages/heapwatch -e .
{
    if command -v nvidia-smi >/dev/null; then nvidia-smi; fi
    "$PYTHON" -m benchmarks.h100 "$OUT" --dreamerv3 "$DREAMERV3" --jax-python "${JAX_PYTHON:-$PYTHON}" \
        --seconds "${LIMIT:-400}" ${QUICK:+--quick}
} 2>&1 | tee "$OUT/run.log"
