// SPDX-License-Identifier: Apache-2.0
// Keeps LLVM's statics alive while the process exits: a thread may still compile.

// The C library's name.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" int __cxa_atexit(void (*)(void*), void*, void*);

// All that is linked into this library calls this one, which registers nothing. Hidden by the
// version script, so that it is nobody else's.
extern "C" int __cxa_atexit(void (*)(void*), void*, void*) { return 0; }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
