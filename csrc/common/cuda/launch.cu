#include "common/cuda/launch.h"

#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <utility>

extern "C" const char zb_build_info[];

namespace zb::cuda {
namespace {

// The architectures of this build, e.g. "80-real 90a-real", from the text that CMake puts into every library.
std::string built_for() {
  const std::string info = zb_build_info, key = "\"cuda_archs\": \"";
  const size_t begin = info.find(key);
  if (begin == std::string::npos) return "unknown";
  return info.substr(begin + key.size(), info.find('"', begin + key.size()) - begin - key.size());
}

bool lacks_image(cudaError_t code) {
  return code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction ||
         code == cudaErrorUnsupportedPtxVersion;
}

std::string capability() {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    return "an unknown compute capability";
  }
  return "compute capability " + std::to_string(major) + "." + std::to_string(minor);
}

}  // namespace

void Place::fail(const char* action, cudaError_t code) const {
  cudaGetLastError();
  if (lacks_image(code)) {
    STD_TORCH_CHECK(false, what(), ": no kernel for this GPU: it has ", capability(),
                    ", and zbkernels was built for the architectures ", built_for(),
                    "; build it again with ZBKERNELS_CUDA_ARCHS naming this GPU (CUDA said: ",
                    cudaGetErrorString(code), ")");
  }
  STD_TORCH_CHECK(false, what(), ": ", action, " failed: ", cudaGetErrorString(code));
  std::abort();  // not reached
}

void Place::allow_all_shared_memory(const char* name, const void* function) const {
  static std::mutex one_at_a_time;
  static std::set<std::pair<int, const void*>> allowed;
  int device = 0, most = 0;
  check(name, cudaGetDevice(&device));
  const std::lock_guard<std::mutex> alone(one_at_a_time);
  if (allowed.count({device, function}) != 0) return;
  cudaFuncAttributes attributes{};
  check(name, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  check(name, cudaFuncGetAttributes(&attributes, function));
  check(name, cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   most - static_cast<int>(attributes.sharedSizeBytes)));
  allowed.insert({device, function});
}

int64_t Place::processors() const {
  int count = 0;
  check("asking for the device's SMs",
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, x_.get_device_index()));
  return count;
}

void Place::refuse_capture(const char* why) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check("asking for the stream's state", cudaStreamIsCapturing(stream_, &status));
  STD_TORCH_CHECK(status == cudaStreamCaptureStatusNone, op_,
                  ": expected a call outside of CUDA graph capture, got one within: ", why);
}

int64_t Place::wait_for(const Tensor& number) const {
  int64_t value = 0;
  check("reading a result's size",
        cudaMemcpyAsync(&value, number.const_data_ptr(), sizeof(value), cudaMemcpyDeviceToHost, stream_));
  check("waiting for a result's size", cudaStreamSynchronize(stream_));
  return value;
}

Place::Place(const char* op, const Tensor& x, const Tensor* weight)
    : op_(op), x_(x), weight_(weight), guard_(x.get_device_index()) {
  const int32_t device = x.get_device_index();
  // The guard speaks to torch's CUDA runtime; the one linked into this library is told as well.
  check("choosing the device", cudaSetDevice(device));
  void* stream = nullptr;
  const auto code = aoti_torch_get_current_cuda_stream(device, &stream);
  STD_TORCH_CHECK(code == AOTI_TORCH_SUCCESS, what(), ": torch gave no current CUDA stream");
  stream_ = static_cast<cudaStream_t>(stream);
}

}  // namespace zb::cuda
