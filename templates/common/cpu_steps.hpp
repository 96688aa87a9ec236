// SPDX-License-Identifier: Apache-2.0
// How host code runs the steps of CPU kernels.
#pragma once

#include "runtime/thread_pool.hpp"

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>

namespace rlk::templates {

// Floats and the like at an address that vectors may be loaded from; not initialized.
template <class T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(std::int64_t count) {
    const auto bytes = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, std::max<std::size_t>(bytes, 64))));
    if (!data_) throw std::bad_alloc();
  }
  T* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
};

// The caller's thread may flush subnormals to zero or round otherwise, and then its rows would
// differ from those of the pool's threads.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatMode() { _mm_setcsr(before_); }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  unsigned before_;
};

// body(begin, end, worker) over the pool, in chunks that cover `items`; a step of little cost, in
// operations, stays on this thread. Workers are below max_workers.
template <class Body>
void run_items_by_worker(std::int64_t items, std::int64_t item_cost, int max_workers,
                         const Body& body) {
  constexpr std::int64_t k_inline_cost = 200'000, k_chunk_cost = 100'000;
  if (items <= 0) return;
  if (items * item_cost <= k_inline_cost) {
    const DefaultFloatMode mode;
    body(0, items, 0);
    return;
  }
  const std::int64_t grain = std::max<std::int64_t>(1, k_chunk_cost / item_cost);
  runtime::ThreadPool::instance().run(
      items, grain,
      [&](std::int64_t begin, std::int64_t end, int worker) {
        const DefaultFloatMode mode;
        body(begin, end, worker);
      },
      max_workers);
}

// The same of a body that needs no worker's number.
template <class Body>
void run_items(std::int64_t items, std::int64_t item_cost, const Body& body) {
  run_items_by_worker(items, item_cost, std::numeric_limits<int>::max(),
                      [&](std::int64_t begin, std::int64_t end, int) { body(begin, end); });
}

}  // namespace rlk::templates
