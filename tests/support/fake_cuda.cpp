// SPDX-License-Identifier: Apache-2.0
// The fake libcuda.so.1. Its "code" is text; a kernel exists if the text says ".entry NAME".
#include "tests/support/fake_cuda.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <span>

#define RLK_EXPORT extern "C" __attribute__((visibility("default")))

namespace rlk::runtime::cuda {
struct ContextTag {
  int device;
};
struct LibraryTag {
  std::string code;
  std::vector<KernelTag*> kernels;
};
struct KernelTag {
  std::string name;
};
}  // namespace rlk::runtime::cuda

namespace {

using namespace rlk::runtime::cuda;
using rlk::test::FakeCuda;

thread_local std::vector<int> contexts;
thread_local CaptureMode mode = CaptureMode::global;

FakeCuda& fake() {
  static FakeCuda state;
  state.contexts = [] { return &contexts; };
  return state;
}

Result record(const char* function) {
  FakeCuda& state = fake();
  ++state.num_calls[function];
  state.order.emplace_back(function);
  if (state.fail_call == function && --state.fail_at == 0) return state.fail_code;
  return result::success;
}

ContextTag* context_of(int device) {
  static ContextTag primary[4] = {{0}, {1}, {2}, {3}};
  static ContextTag own{1};
  return device == FakeCuda::k_own_context ? &own : &primary[device];
}

int current_device() { return contexts.empty() ? -1 : context_of(contexts.back())->device; }

template <class Work>
Result answer(const char* function, Work work) {
  const Result code = record(function);
  if (code == result::success) work();
  return code;
}

int attribute_of(DeviceAttribute attribute, DeviceOrdinal device) {
  const auto [major, minor] = fake().capabilities.at(static_cast<std::size_t>(device));
  switch (attribute) {
    case DeviceAttribute::capability_major:
      return major;
    case DeviceAttribute::capability_minor:
      return minor;
    case DeviceAttribute::num_sms:
      return 132;
    case DeviceAttribute::shared_bytes_optin:
      return 227 << 10;
  }
  return -1;
}

// The newest PTX that a driver knows: 8.8 as 88.
int newest_ptx(int driver) {
  constexpr std::pair<int, int> known[] = {{13000, 90}, {12090, 88}, {12080, 87}, {12070, 86},
                                           {12050, 85}, {12040, 84}, {12030, 83}, {12020, 82},
                                           {12010, 81}, {12000, 80}};
  for (const auto& [since, ptx] : known) {
    if (driver >= since) return ptx;
  }
  return 0;
}

// Why a driver of this version refuses code of this text.
Result refusal(const std::string& code) {
  int major = 0, minor = 0;
  const auto version = code.find(".version ");
  if (version != code.npos &&
      std::sscanf(code.c_str() + version, ".version %d.%d", &major, &minor) == 2 &&
      major * 10 + minor > newest_ptx(fake().version)) {
    return result::unsupported_ptx_version;
  }
  const bool is_blackwell =
      code.find(".target sm_100") != code.npos || code.find(".target sm_120") != code.npos;
  return is_blackwell && fake().version < 12080 ? result::no_binary_for_gpu : result::success;
}

// --- The functions, named as in the table
// ---------------------------------------------------------

Result init(unsigned) { return record("cuInit"); }
Result driver_get_version(int* version) {
  return answer("cuDriverGetVersion", [&] { *version = fake().version; });
}
Result get_error_name(Result code, const char** text) {
  *text = code == 1     ? "CUDA_ERROR_INVALID_VALUE"
          : code == 2   ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == 3   ? "CUDA_ERROR_NOT_INITIALIZED"
          : code == 100 ? "CUDA_ERROR_NO_DEVICE"
          : code == 200 ? "CUDA_ERROR_INVALID_IMAGE"
          : code == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : code == 222 ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
          : code == 900 ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                        : nullptr;
  return *text != nullptr ? result::success : result::invalid_value;
}
Result get_error_string(Result code, const char** text) {
  *text = code == 2 ? "out of memory" : nullptr;
  return *text != nullptr ? result::success : result::invalid_value;
}
Result device_get_count(int* count) {
  return answer("cuDeviceGetCount", [&] { *count = static_cast<int>(fake().capabilities.size()); });
}
Result device_get(DeviceOrdinal* device, int ordinal) {
  return answer("cuDeviceGet", [&] { *device = ordinal; });
}
Result device_get_name(char* name, int bytes, DeviceOrdinal device) {
  return answer("cuDeviceGetName", [&] {
    std::snprintf(name, static_cast<std::size_t>(bytes), "Fake H100 number %d", device);
  });
}
Result device_get_attribute(int* value, DeviceAttribute attribute, DeviceOrdinal device) {
  return answer("cuDeviceGetAttribute", [&] { *value = attribute_of(attribute, device); });
}
Result device_total_mem(std::size_t* bytes, DeviceOrdinal) {
  return answer("cuDeviceTotalMem", [&] { *bytes = std::size_t{80} << 30; });
}
Result primary_ctx_retain(Context* context, DeviceOrdinal device) {
  return answer("cuDevicePrimaryCtxRetain", [&] { *context = context_of(device); });
}
Result ctx_get_current(Context* context) {
  return answer("cuCtxGetCurrent",
                [&] { *context = contexts.empty() ? nullptr : context_of(contexts.back()); });
}
Result ctx_get_device(DeviceOrdinal* device) {
  return answer("cuCtxGetDevice", [&] { *device = current_device(); });
}
Result ctx_push_current(Context context) {
  return answer("cuCtxPushCurrent", [&] { contexts.push_back(context->device); });
}
Result ctx_pop_current(Context*) {
  return answer("cuCtxPopCurrent", [] { contexts.pop_back(); });
}
Result library_load_data(Library* library, const void* code, JitOption* options, void** values,
                         unsigned num_options, int*, void**, unsigned) {
  fake().load_modes.push_back(mode);
  for (unsigned i = 0; i < num_options; ++i) {
    if (options[i] != JitOption::error_log) continue;
    std::strcpy(static_cast<char*>(values[i]), fake().load_log.c_str());
  }
  if (const Result failure = record("cuLibraryLoadData")) return failure;
  const std::string text = static_cast<const char*>(code);
  if (const Result refused = refusal(text)) return refused;
  *library = new LibraryTag{text, {}};
  ++fake().num_loaded;
  return result::success;
}
Result library_unload(Library library) {
  return answer("cuLibraryUnload", [&] {
    fake().load_modes.push_back(mode);
    for (auto* kernel : library->kernels) delete kernel;
    delete library;
    --fake().num_loaded;
  });
}
Result library_get_kernel(Kernel* kernel, Library library, const char* name) {
  if (const Result code = record("cuLibraryGetKernel")) return code;
  if (library->code.find(std::string(".entry ") + name + "(") == std::string::npos) {
    return result::not_found;
  }
  library->kernels.push_back(*kernel = new KernelTag{name});
  return result::success;
}
Result kernel_get_function(Function* function, Kernel kernel) {
  if (contexts.empty()) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  fake().load_modes.push_back(mode);
  return answer("cuKernelGetFunction", [&] { *function = reinterpret_cast<Function>(kernel); });
}
Result kernel_get_attribute(int* value, KernelAttribute, Kernel, DeviceOrdinal) {
  return answer("cuKernelGetAttribute", [&] { *value = fake().static_shared_bytes; });
}
Result kernel_set_attribute(KernelAttribute attribute, int value, Kernel kernel,
                            DeviceOrdinal device) {
  return answer("cuKernelSetAttribute", [&] {
    fake().attributes.push_back({kernel->name, device, static_cast<int>(attribute), value});
  });
}
void note(FakeCuda::Launch launch) {
  if (fake().argument_bytes) {
    const auto* first = static_cast<const std::byte*>(launch.arguments[0]);
    launch.first_argument.assign(first, first + fake().argument_bytes(launch.kernel));
  }
  if (fake().on_launch) fake().on_launch(launch);
  fake().launches.push_back(std::move(launch));
}
Result launch_kernel(Function function, unsigned grid_x, unsigned grid_y, unsigned,
                     unsigned block_x, unsigned, unsigned, unsigned shared_bytes, Stream stream,
                     void** arguments, void**) {
  return answer("cuLaunchKernel", [&] {
    note({reinterpret_cast<Kernel>(function)->name,
          current_device(),
          grid_x,
          block_x,
          shared_bytes,
          stream,
          arguments,
          {},
          1,
          grid_y});
  });
}
Result launch_kernel_ex(const LaunchConfig* config, Function function, void** arguments, void**) {
  unsigned cluster = 1;
  bool overlaps = false;
  for (const LaunchAttribute& given : std::span(config->attributes, config->num_attributes)) {
    if (given.kind == LaunchAttribute::k_cluster) cluster = given.x;
    if (given.kind == LaunchAttribute::k_overlap) overlaps = given.x == 1;
  }
  // CUDA_ERROR_INVALID_VALUE, as the driver answers to a grid that is not whole clusters.
  if (cluster == 0 || config->grid_x % cluster != 0) return result::invalid_value;
  return answer("cuLaunchKernelEx", [&] {
    note({reinterpret_cast<Kernel>(function)->name,
          current_device(),
          config->grid_x,
          config->block_x,
          config->shared_bytes,
          config->stream,
          arguments,
          {},
          cluster,
          config->grid_y,
          overlaps});
  });
}
Result stream_is_capturing(Stream, CaptureStatus* status) {
  return answer("cuStreamIsCapturing", [&] { *status = fake().capture; });
}
Result stream_synchronize(Stream) { return record("cuStreamSynchronize"); }
Result exchange_capture_mode(CaptureMode* wanted) {
  return answer("cuThreadExchangeStreamCaptureMode", [&] { std::swap(mode, *wanted); });
}
Result mem_alloc(std::uint64_t* address, std::size_t bytes) {
  return answer("cuMemAlloc",
                [&] { *address = reinterpret_cast<std::uint64_t>(std::malloc(bytes)); });
}
Result mem_free(std::uint64_t address) {
  return answer("cuMemFree", [&] { std::free(reinterpret_cast<void*>(address)); });
}
Result ctx_synchronize() {
  if (contexts.empty()) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  return answer("cuCtxSynchronize", [] { fake().synchronized.push_back(current_device()); });
}
Result mem_alloc_async(std::uint64_t* address, std::size_t bytes, Stream) {
  return answer("cuMemAllocAsync",
                [&] { *address = reinterpret_cast<std::uint64_t>(std::malloc(bytes)); });
}
Result mem_free_async(std::uint64_t address, Stream) {
  return answer("cuMemFreeAsync", [&] { std::free(reinterpret_cast<void*>(address)); });
}
Result memset_d8_async(std::uint64_t address, unsigned char value, std::size_t bytes,
                       Stream stream) {
  return answer("cuMemsetD8Async", [&] {
    fake().memsets.push_back({address, value, bytes, stream});
    if (fake().fills_memory) std::memset(reinterpret_cast<void*>(address), value, bytes);
  });
}
Result memset_d16_async(std::uint64_t address, unsigned short value, std::size_t count,
                        Stream stream) {
  return answer("cuMemsetD16Async", [&] {
    fake().memsets.push_back({address, value, count * 2, stream});
    if (fake().fills_memory) std::fill_n(reinterpret_cast<std::uint16_t*>(address), count, value);
  });
}
Result memset_d32_async(std::uint64_t address, unsigned value, std::size_t count, Stream stream) {
  return answer("cuMemsetD32Async", [&] {
    fake().memsets.push_back({address, value, count * 4, stream});
    if (fake().fills_memory) std::fill_n(reinterpret_cast<std::uint32_t*>(address), count, value);
  });
}
Result tensor_map_encode_tiled(void*, int, unsigned, void* address, const std::uint64_t* sizes,
                               const std::uint64_t* strides_bytes, const std::uint32_t* box,
                               const std::uint32_t*, int, int, int, int) {
  if (contexts.empty()) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  return answer("cuTensorMapEncodeTiled", [&] {
    fake().tensor_maps.push_back({address, sizes[0], sizes[1], strides_bytes[0], box[1]});
  });
}
Result event_create(Event* event, unsigned) {
  return answer("cuEventCreate", [&] { *event = nullptr; });
}
Result event_destroy(Event) { return record("cuEventDestroy"); }
Result event_record(Event, Stream) { return record("cuEventRecord"); }
Result event_synchronize(Event) { return record("cuEventSynchronize"); }
Result event_elapsed_time(float* ms, Event, Event) {
  return answer("cuEventElapsedTime", [&] { *ms = fake().elapsed_ms ? fake().elapsed_ms() : 1; });
}
Result stream_wait_event(Stream, Event, unsigned) { return record("cuStreamWaitEvent"); }
Result memcpy_htod(std::uint64_t to, const void* from, std::size_t bytes) {
  return answer("cuMemcpyHtoD", [&] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
}
Result memcpy_dtoh(void* to, std::uint64_t from, std::size_t bytes) {
  return answer("cuMemcpyDtoH",
                [&] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
}
Result mem_host_alloc(void** memory, std::size_t bytes, unsigned) {
  return answer("cuMemHostAlloc", [&] { *memory = std::calloc(1, bytes); });
}
Result mem_free_host(void* memory) {
  return answer("cuMemFreeHost", [&] { std::free(memory); });
}

}  // namespace

RLK_EXPORT FakeCuda* rlk_fake_cuda() { return &fake(); }

#ifdef RLK_FAKE_OLDER_THAN_12
#define RLK_FAKE_GET cuGetProcAddress
#else
#define RLK_FAKE_GET cuGetProcAddress_v2
#endif
RLK_EXPORT Result RLK_FAKE_GET(const char* symbol, void** function, int version, std::uint64_t,
                               int*) {
  fake().asked.emplace_back(symbol);
  fake().asked_version = version;
  if (fake().missing_function == symbol) return result::not_found;
#define RLK_FAKE_FIND(member, name, parameters) \
  if (std::strcmp(symbol, #name) == 0) *function = reinterpret_cast<void*>(&member);
  RLK_CUDA_FUNCTIONS(RLK_FAKE_FIND)
#undef RLK_FAKE_FIND
  return result::success;
}
