// Registration of kernels with the dispatcher through the raw C shim.
//
// torch's own STABLE_TORCH_LIBRARY macros abort the process when a name is taken already (by a second copy of
// the library, or by a definition made in Python). Here every code is looked at instead, and what failed is
// kept for the loader to read.
#pragma once

#include <torch/csrc/stable/library.h>

#include <initializer_list>

namespace zb {

struct Kernel {
  const char* name;
  void (*boxed)(StableIValue*, uint64_t, uint64_t);
};

// A static object of an op's source file: gives the dispatcher key ("CPU", "CUDA") its kernels.
struct Registration {
  Registration(const char* key, std::initializer_list<Kernel> kernels);
};

// Defines all schemas, once a library; false where the names were taken. Only _C_cpu has it (schemas.cpp);
// _C_cuda adds kernels to ops that are there.
bool define_schemas();

}  // namespace zb
