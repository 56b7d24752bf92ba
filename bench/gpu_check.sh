#!/usr/bin/env bash
# One script for a CUDA machine: environment report, build or load, test, sanitize, measure, inside five minutes.
# Leaves one JSON and one Markdown file under $OUT, or under bench/results, and prints a short table last.
#
#   bench/gpu_check.sh                      everything
#   bench/gpu_check.sh --only load speed    parts by name: build load ops robust speed models graphs
#                                           sanitizer triton tests profiler
#   bench/gpu_check.sh --dry-run            everything but the launch, on any machine
#
# PYTHON picks the interpreter; else an active or local virtual environment's, else python3. See gpu/ for the rest.
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
PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" exec "$PYTHON" -m gpu "$@"
