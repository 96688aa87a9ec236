// SPDX-License-Identifier: Apache-2.0
// Codes of element types: the constant kX of templates, and fields of their arguments. Included by
// kernels of both backends, so this file includes nothing.
#pragma once

namespace rlk {

// Storage types come first. Integers (bool too) have codes kSigned or kUnsigned plus their size in
// bytes.
enum TypeCode : int {
  kNone = 0,
  kFloat32 = 1,
  kBfloat16 = 2,
  kFloat16 = 3,
  kFloat64 = 4,
  kSigned = 16,
  kUnsigned = 32,
};

}  // namespace rlk
