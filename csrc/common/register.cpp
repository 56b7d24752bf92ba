#include "common/register.h"

#include <string>

#include "zb_schemas.h"

namespace zb {
namespace {

// The emulation's kernels are CUDA's on CPU tensors. They have a namespace of their own beside the real ops'.
#ifdef ZB_CUDA_EMULATION
constexpr const char* kNamespace = "zb_emulated";
const char* key_of(const char*) { return "CPU"; }
#else
constexpr const char* kNamespace = "zb";
const char* key_of(const char* key) { return key; }
#endif

std::string& failure() {
  static std::string text;
  return text;
}

void note(const std::string& what) {
  if (failure().empty()) failure() = what;
}

}  // namespace

#ifdef ZB_DEFINES_SCHEMAS
bool define_schemas() {
  static const bool defined = [] {
    TorchLibraryHandle library = nullptr;  // never deleted: the ops live as long as the process
    if (aoti_torch_library_init_fragment(kNamespace, __FILE__, __LINE__, &library) != AOTI_TORCH_SUCCESS) {
      note("the namespace of the ops could not be opened");
      return false;
    }
    for (const char* schema : kSchemas) {
      if (aoti_torch_library_def(library, schema) != AOTI_TORCH_SUCCESS) {
        note(std::string("already defined: ") + schema);
        return false;
      }
    }
    return true;
  }();
  return defined;
}
#else
bool define_schemas() { return true; }
#endif

Registration::Registration(const char* key, std::initializer_list<Kernel> kernels) {
  if (!define_schemas()) return;
  TorchLibraryHandle library = nullptr;
  if (aoti_torch_library_init_impl(kNamespace, key_of(key), __FILE__, __LINE__, &library) !=
      AOTI_TORCH_SUCCESS) {
    note(std::string("the key ") + key + " could not be opened");
    return;
  }
  for (const Kernel& kernel : kernels) {
    if (torch_library_impl(library, kernel.name, kernel.boxed, TORCH_ABI_VERSION) != AOTI_TORCH_SUCCESS) {
      note(std::string("no kernel could be registered for ") + kernel.name);
    }
  }
}

}  // namespace zb

// For the loader: the first thing that went wrong while the library was loaded, or an empty string.
extern "C" __attribute__((visibility("default"))) const char* zb_registration_error() {
  return zb::failure().c_str();
}
