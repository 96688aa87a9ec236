// SPDX-License-Identifier: Apache-2.0
// Loops over the entries of a large cache, in the threads of the process's pool.
#pragma once

#include "runtime/thread_pool.hpp"

#include <cstddef>
#include <cstdint>

namespace rlk::cli {

// body(begin, end) for ranges of [0, count), several at once.
template <class Body>
void for_each_chunk(std::size_t count, const Body& body) {
  constexpr std::int64_t k_entries_a_chunk = 256;
  runtime::ThreadPool::instance().run(static_cast<std::int64_t>(count), k_entries_a_chunk,
                                      [&](std::int64_t begin, std::int64_t end, int) {
                                        body(static_cast<std::size_t>(begin),
                                             static_cast<std::size_t>(end));
                                      });
}

// body(i) for i in [0, count), several at once.
template <class Body>
void for_each_entry(std::size_t count, const Body& body) {
  for_each_chunk(count, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace rlk::cli
