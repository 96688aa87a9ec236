// SPDX-License-Identifier: Apache-2.0
// Constants of every CPU template of logits, to which the JIT gives their values.
#pragma once

extern "C" {
extern const long long kX;           // type of what the logits come from: a TypeCode; never -1
extern const long long kV;           // vocabulary size, or -1: run-time args->vocab
extern const long long kSegment;     // columns of a segment, or -1: those of a vocabulary of its
                                     // own where kV is given, else run-time args->shard
extern const long long kSoftcap;     // 1: applied, 0: none, -1: run-time, as LogitOptions says
extern const long long kLogitScale;  // likewise
extern const long long kEntropy;  // forward: is asked for, backward: has a gradient; 0, 1, or -1:
                                  // run-time pointers
extern const long long kStats;    // forward: are asked for; likewise
}
