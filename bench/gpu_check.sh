#!/usr/bin/env bash
# One prepared script for a CUDA machine: build or load, test, sanitize, measure, all inside five minutes.
# Leaves one JSON and one Markdown file under $OUT, or under bench/results. See gpu_check.py for the options.
#
#   bench/gpu_check.sh                     everything
#   bench/gpu_check.sh --only load bench   parts by name: build load ops triton sanitizer bench train
#   bench/gpu_check.sh --dry-run           what it would do here; needs no card
#
# PYTHON picks the interpreter; else an active or local virtual environment's, else python3.
set -eu
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ -z "${PYTHON:-}" ]; then
  if [ -n "${VIRTUAL_ENV:-}" ]; then
    PYTHON="$VIRTUAL_ENV/bin/python"
  elif [ -x "$here/../.venv/bin/python" ]; then
    PYTHON="$here/../.venv/bin/python"
  else
    PYTHON=python3
  fi
fi
exec "$PYTHON" "$here/gpu_check.py" "$@"
