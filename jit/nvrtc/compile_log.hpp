// SPDX-License-Identifier: Apache-2.0
// What is read from the compiler's texts, and how PTX is stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rlk::jit {

// The most bytes that one function spills, from a log under --ptxas-options=-v; -1 if it does not
// speak of spills.
std::int64_t spilled_bytes(std::string_view log);

// Whether ptxas says that it lets wgmma instructions wait for each other (its messages C7506 and
// on), which makes a kernel several times slower.
bool serializes_wgmma(std::string_view log);

// Sets PTX's `.version` line to 7.4, so that older drivers take it, and takes out the one hint that
// 7.4 has no word for, besides comments, empty lines and indentation, a fifth of the text. False if
// there is no such line.
bool pack_ptx(std::vector<std::byte>& ptx);

// Whether PTX defines a kernel of that name.
bool ptx_has_entry(std::string_view ptx, std::string_view name);

}  // namespace rlk::jit
