// SPDX-License-Identifier: Apache-2.0
// The part of DLPack's stable ABI that rlk uses (version 1.x, with the C exchange API). Declared
// here because Debian's package is older than it; names follow the standard.
#pragma once

#include <cstdint>

namespace rlk::dlpack {

enum DLDeviceType : std::int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };
enum DLDataTypeCode : std::uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6
};

struct DLVersion {
  std::uint32_t major, minor;
};
struct DLDevice {
  DLDeviceType device_type;
  std::int32_t device_id;
};
struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // null: dense (before version 1.2)
  std::uint64_t byte_offset;
};
struct DLManagedTensor {  // capsule "dltensor"
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
struct DLManagedTensorVersioned {  // capsule "dltensor_versioned"
  DLVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

// type(tensor).__dlpack_c_exchange_api__ is a capsule "dlpack_exchange_api" of this.
struct DLPackExchangeAPI {
  DLVersion version;
  DLPackExchangeAPI* prev_api;
  int (*managed_tensor_allocator)(DLTensor* prototype, DLManagedTensorVersioned** out,
                                  void* error_ctx,
                                  void (*set_error)(void* ctx, const char* kind, const char* text));
  int (*managed_tensor_from_py_object_no_sync)(void* object, DLManagedTensorVersioned** out);
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned* tensor, void** out);
  int (*dltensor_from_py_object_no_sync)(void* object, DLTensor* out);  // may be null
  int (*current_work_stream)(DLDeviceType type, std::int32_t id, void** out);
};

}  // namespace rlk::dlpack
