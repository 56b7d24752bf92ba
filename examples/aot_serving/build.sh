#!/bin/sh
# Compiles main.cpp against the libtorch inside the installed torch: build.sh PROGRAM. PYTHON and CXX may be set.
set -eu
program=${1:?usage: build.sh PROGRAM}
torch=$("${PYTHON:-python3}" -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
exec "${CXX:-c++}" -std=c++17 -O1 "$(dirname "$0")/main.cpp" -o "$program" \
  -isystem "$torch/include" \
  -L"$torch/lib" -Wl,-rpath,"$torch/lib" -Wl,--no-as-needed -ltorch_cpu -ltorch -lc10 -ldl
