// SPDX-License-Identifier: Apache-2.0
// The part of libcuda's ABI that rlk uses, so that no CUDA header is needed to build. All of it is
// frozen since CUDA 12.0; names follow cuda.h where a reader may want to look them up there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rlk::runtime::cuda {

using Result = int;  // CUresult
using DeviceOrdinal = int;

struct ContextTag;
struct StreamTag;
struct EventTag;
struct LibraryTag;
struct KernelTag;
struct FunctionTag;
using Context = ContextTag*;
using Stream = StreamTag*;
using Event = EventTag*;
using Library = LibraryTag*;
using Kernel = KernelTag*;
using Function = FunctionTag*;

// The oldest driver whose libcuda has context-independent loading (cuLibraryLoadData).
inline constexpr int k_oldest_driver = 12000;

namespace result {
inline constexpr Result success = 0, invalid_value = 1, out_of_memory = 2, not_initialized = 3,
                        deinitialized = 4, no_device = 100, invalid_image = 200,
                        no_binary_for_gpu = 209, invalid_ptx = 218, jit_compiler_not_found = 221,
                        unsupported_ptx_version = 222, jit_compilation_disabled = 223,
                        invalid_source = 300, not_found = 500, capture_unsupported = 900,
                        capture_implicit = 906;
}

enum class DeviceAttribute : int {
  num_sms = 16,
  capability_major = 75,
  capability_minor = 76,
  shared_bytes_optin = 97,
};

enum class KernelAttribute : int { static_shared_bytes = 1, max_dynamic_shared_bytes = 8 };
enum class CaptureStatus : int { none = 0, active = 1, invalidated = 2 };
enum class CaptureMode : int { global = 0, thread_local_only = 1, relaxed = 2 };

// CUlaunchAttribute of the kinds CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION (x, y, z) and
// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION (x is 1), and CUlaunchConfig.
struct LaunchAttribute {
  enum Kind : int { k_none = 0, k_cluster = 4, k_overlap = 6 } kind = k_none;
  int padding = 0;
  unsigned x = 1, y = 1, z = 1;
  unsigned rest_of_value[13]{};
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

enum class JitOption : int { error_log = 5, error_log_bytes = 6 };

// X(member, symbol, parameters): every entry point that is asked of the driver at opening.
#define RLK_CUDA_FUNCTIONS(X)                                                                 \
  X(init, cuInit, (unsigned flags))                                                           \
  X(driver_get_version, cuDriverGetVersion, (int* version))                                   \
  X(get_error_name, cuGetErrorName, (Result, const char** text))                              \
  X(get_error_string, cuGetErrorString, (Result, const char** text))                          \
  X(device_get_count, cuDeviceGetCount, (int* count))                                         \
  X(device_get, cuDeviceGet, (DeviceOrdinal * device, int ordinal))                           \
  X(device_get_name, cuDeviceGetName, (char* name, int bytes, DeviceOrdinal))                 \
  X(device_get_attribute, cuDeviceGetAttribute, (int* value, DeviceAttribute, DeviceOrdinal)) \
  X(device_total_mem, cuDeviceTotalMem, (std::size_t* bytes, DeviceOrdinal))                  \
  X(primary_ctx_retain, cuDevicePrimaryCtxRetain, (Context*, DeviceOrdinal))                  \
  X(ctx_get_current, cuCtxGetCurrent, (Context*))                                             \
  X(ctx_get_device, cuCtxGetDevice, (DeviceOrdinal*))                                         \
  X(ctx_push_current, cuCtxPushCurrent, (Context))                                            \
  X(ctx_pop_current, cuCtxPopCurrent, (Context*))                                             \
  X(ctx_synchronize, cuCtxSynchronize, ())                                                    \
  X(library_load_data, cuLibraryLoadData,                                                     \
    (Library*, const void* code, JitOption* options, void** values, unsigned num_options,     \
     int* library_options, void** library_values, unsigned num_library_options))              \
  X(library_unload, cuLibraryUnload, (Library))                                               \
  X(library_get_kernel, cuLibraryGetKernel, (Kernel*, Library, const char* name))             \
  X(kernel_get_function, cuKernelGetFunction, (Function*, Kernel))                            \
  X(kernel_get_attribute, cuKernelGetAttribute,                                               \
    (int* value, KernelAttribute, Kernel, DeviceOrdinal))                                     \
  X(kernel_set_attribute, cuKernelSetAttribute,                                               \
    (KernelAttribute, int value, Kernel, DeviceOrdinal))                                      \
  X(launch_kernel, cuLaunchKernel,                                                            \
    (Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,           \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream, void** arguments,     \
     void** extra))                                                                           \
  X(launch_kernel_ex, cuLaunchKernelEx,                                                       \
    (const LaunchConfig*, Function, void** arguments, void** extra))                          \
  X(stream_is_capturing, cuStreamIsCapturing, (Stream, CaptureStatus*))                       \
  X(stream_synchronize, cuStreamSynchronize, (Stream))                                        \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (CaptureMode*))                 \
  X(mem_alloc, cuMemAlloc, (std::uint64_t* address, std::size_t bytes))                       \
  X(mem_free, cuMemFree, (std::uint64_t address))                                             \
  X(memcpy_htod, cuMemcpyHtoD, (std::uint64_t to, const void* from, std::size_t bytes))       \
  X(memcpy_dtoh, cuMemcpyDtoH, (void* to, std::uint64_t from, std::size_t bytes))             \
  X(mem_alloc_async, cuMemAllocAsync, (std::uint64_t* address, std::size_t bytes, Stream))    \
  X(mem_free_async, cuMemFreeAsync, (std::uint64_t address, Stream))                          \
  X(memset_d8_async, cuMemsetD8Async,                                                         \
    (std::uint64_t address, unsigned char value, std::size_t bytes, Stream))                  \
  X(memset_d16_async, cuMemsetD16Async,                                                       \
    (std::uint64_t address, unsigned short value, std::size_t count, Stream))                 \
  X(memset_d32_async, cuMemsetD32Async,                                                       \
    (std::uint64_t address, unsigned value, std::size_t count, Stream))                       \
  X(tensor_map_encode_tiled, cuTensorMapEncodeTiled,                                          \
    (void* map, int element_type, unsigned rank, void* address, const std::uint64_t* sizes,   \
     const std::uint64_t* strides_bytes, const std::uint32_t* box,                            \
     const std::uint32_t* element_strides, int interleave, int swizzle, int l2_promotion,     \
     int fill))                                                                               \
  X(event_create, cuEventCreate, (Event*, unsigned flags))                                    \
  X(event_destroy, cuEventDestroy, (Event))                                                   \
  X(event_record, cuEventRecord, (Event, Stream))                                             \
  X(event_synchronize, cuEventSynchronize, (Event))                                           \
  X(event_elapsed_time, cuEventElapsedTime, (float* ms, Event start, Event end))              \
  X(stream_wait_event, cuStreamWaitEvent, (Stream, Event, unsigned flags))                    \
  X(mem_host_alloc, cuMemHostAlloc, (void** memory, std::size_t bytes, unsigned flags))       \
  X(mem_free_host, cuMemFreeHost, (void* memory))

struct DriverTable {
#define RLK_CUDA_MEMBER(member, symbol, parameters) Result(*member) parameters = nullptr;
  RLK_CUDA_FUNCTIONS(RLK_CUDA_MEMBER)
#undef RLK_CUDA_MEMBER
};

}  // namespace rlk::runtime::cuda
