// _host: what the package needs from C++ that is not a tensor op. Knows nothing of torch.
#include <pybind11/pybind11.h>

#include <cstring>
#include <string>

#include "host/bindings.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

extern "C" const char zb_build_info[];

namespace {

namespace py = pybind11;

// The JSON text behind the marker word: versions, compiler, CUDA architectures.
std::string build_info() { return std::strchr(zb_build_info, ':') + 1; }

// Name -> whether this CPU (and the operating system, which must save the registers) has the feature.
py::dict cpu_features() {
  py::dict features;
#if defined(__x86_64__)
  __builtin_cpu_init();
  features["sse4.2"] = __builtin_cpu_supports("sse4.2") != 0;
  features["avx"] = __builtin_cpu_supports("avx") != 0;
  features["avx2"] = __builtin_cpu_supports("avx2") != 0;
  features["fma"] = __builtin_cpu_supports("fma") != 0;
  features["avx512f"] = __builtin_cpu_supports("avx512f") != 0;
  features["avx512bw"] = __builtin_cpu_supports("avx512bw") != 0;
  features["avx512dq"] = __builtin_cpu_supports("avx512dq") != 0;
  features["avx512vl"] = __builtin_cpu_supports("avx512vl") != 0;
  features["avx512_bf16"] = __builtin_cpu_supports("avx512bf16") != 0;
  features["avx512vpopcntdq"] = __builtin_cpu_supports("avx512vpopcntdq") != 0;
#elif defined(__aarch64__) && defined(__linux__)
  const unsigned long hwcap = getauxval(AT_HWCAP);
  features["neon"] = (hwcap & HWCAP_ASIMD) != 0;
  features["fp16"] = (hwcap & HWCAP_ASIMDHP) != 0;
  features["sve"] = (hwcap & HWCAP_SVE) != 0;
#endif
  return features;
}

}  // namespace

PYBIND11_MODULE(_host, m) {
  m.doc() = "CPU features and build facts of zbkernels, and the index of activation patterns.";
  m.def("build_info", &build_info, "JSON: versions, compiler and CUDA architectures of this build.");
  m.def("cpu_features", &cpu_features, "dict[str, bool]: instruction sets that this machine can run.");
  zb::bind_nap_index(m);
}
