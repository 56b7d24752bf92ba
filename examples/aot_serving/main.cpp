// Runs the package that export.py wrote, without Python:
//
//   serve LIBRARY MODEL INPUT FOLDER
//
// LIBRARY is what `python -c "import zbkernels; print(zbkernels.library_path())"` prints: it defines the ops
// zb::*. INPUT holds raw float32 images of 1x28x28, as many as there are. Writes FOLDER/logits.bin and
// FOLDER/signatures.bin.
#include <dlfcn.h>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int64_t kHeight = 28;
constexpr int64_t kWidth = 28;

// The kernels register themselves while the library is loaded. It stays loaded: the dispatcher keeps their
// addresses.
void load_ops(const std::string& library) {
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw std::runtime_error(std::string("the library of ops could not be loaded: ") + dlerror());
  }
  if (!c10::Dispatcher::singleton().findSchema({"zb::conv_relu_pool2d", ""})) {
    throw std::runtime_error(library + " does not define the ops zb::*: expected zbkernels' _C_cpu.so");
  }
}

at::Tensor read_images(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  constexpr size_t kImage = kHeight * kWidth * sizeof(float);
  if (bytes.empty() || bytes.size() % kImage != 0) {
    throw std::runtime_error(path + ": expected a multiple of " + std::to_string(kImage) + " bytes, got " +
                             std::to_string(bytes.size()));
  }
  const auto count = static_cast<int64_t>(bytes.size() / kImage);
  return at::from_blob(const_cast<char*>(bytes.data()), {count, 1, kHeight, kWidth}, at::kFloat).clone();
}

// The first line of what libtorch says: below it stands where in libtorch that was.
std::string in_one_line(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

torch::inductor::AOTIModelPackageLoader load_model(const std::string& path) {
  // A package checks its input only where this is set, and else computes something from an image of another
  // size. Each package looks once, in its first run.
  setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", /*overwrite=*/0);
  try {
    return torch::inductor::AOTIModelPackageLoader(path);
  } catch (const std::exception& error) {
    throw std::runtime_error("the package " + path + " could not be loaded: " + in_one_line(error));
  }
}

std::vector<at::Tensor> run(torch::inductor::AOTIModelPackageLoader& model, const at::Tensor& images,
                            const std::string& path) {
  try {
    return model.run({images});
  } catch (const std::exception& error) {
    throw std::runtime_error("the package did not run on " + path + ": " + in_one_line(error));
  }
}

void write_values(const std::string& path, const at::Tensor& values) {
  const at::Tensor dense = values.contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(dense.const_data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: serve LIBRARY MODEL INPUT FOLDER\n";
    return 2;
  }
  try {
    load_ops(argv[1]);
    torch::inductor::AOTIModelPackageLoader model = load_model(argv[2]);
    const std::string folder = argv[4];
    const at::Tensor images = read_images(argv[3]);
    const std::vector<at::Tensor> results = run(model, images, argv[3]);
    write_values(folder + "/logits.bin", results.at(0));
    write_values(folder + "/signatures.bin", results.at(1));
    std::cout << images.size(0) << " images -> " << results[0].sizes() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "serve: " << in_one_line(error) << "\n";
    return 1;
  }
  return 0;
}
