// The parts of the Python module _host that have a file of their own.
#pragma once

#include <pybind11/pybind11.h>

namespace zb {

void bind_nap_index(pybind11::module_& m);

}  // namespace zb
