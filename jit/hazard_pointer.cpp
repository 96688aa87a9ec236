// SPDX-License-Identifier: Apache-2.0
// A list that only grows: a thread takes a free record or adds one, and gives it back as it ends.
#include "jit/hazard_pointer.hpp"

namespace rlk::jit {
namespace {

// A cache line each: every call of every thread writes one.
struct alignas(64) Record {
  std::atomic<const void*> reads{nullptr};
  std::atomic<bool> is_taken{true};
  Record* next = nullptr;
};

std::atomic<Record*> records{nullptr};

Record* take_record() {
  for (Record* record = records.load(); record != nullptr; record = record->next) {
    if (!record->is_taken.exchange(true)) return record;
  }
  auto* made = new Record;  // never freed: others may be walking over it
  made->next = records.load();
  while (!records.compare_exchange_weak(made->next, made)) {
  }
  return made;
}

// Without a constructor, so that a call while the thread's other variables are destroyed finds it.
thread_local Record* own_record = nullptr;

struct GiveBack {
  ~GiveBack() {
    own_record->reads = nullptr;
    own_record->is_taken = false;
    own_record = nullptr;
  }
};

}  // namespace

std::atomic<const void*>& hazard_pointer() {
  if (own_record == nullptr) {
    own_record = take_record();
    thread_local const GiveBack give_back;
  }
  return own_record->reads;
}

bool is_read_by_a_thread(const void* object) {
  for (Record* record = records.load(); record != nullptr; record = record->next) {
    if (record->reads.load() == object) return true;
  }
  return false;
}

void forget_other_threads_hazards() {
  for (Record* record = records.load(); record != nullptr; record = record->next) {
    if (record == own_record) continue;
    record->reads = nullptr;
    record->is_taken = false;
  }
}

}  // namespace rlk::jit
