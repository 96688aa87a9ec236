// SPDX-License-Identifier: Apache-2.0
// Keeps an object alive while a thread reads it without a lock: each thread publishes the address
// of the one object that it reads, and who would free an object asks first. See M. Michael, "Hazard
// pointers: safe memory reclamation for lock-free objects", 2004.
#pragma once

#include <atomic>

namespace rlk::jit {

// What this thread reads; null: nothing. To be set, in sequentially consistent order, before the
// object is looked at; then its place must be read again: it may have been taken out meanwhile.
std::atomic<const void*>& hazard_pointer();

// Whether a thread reads it. To be asked after the object has been taken out of reach.
bool is_read_by_a_thread(const void* object);

// In a forked child the parent's other threads read nothing.
void forget_other_threads_hazards();

}  // namespace rlk::jit
