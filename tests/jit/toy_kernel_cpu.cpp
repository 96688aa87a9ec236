// SPDX-License-Identifier: Apache-2.0
// A small template for the compiler's tests: a register tile whose shape is made of constants, an
// option that may be a run-time argument, and entry points that must fail to compile.
constexpr int lanes = RLK_VL;
typedef float Vector __attribute__((vector_size(lanes * 4), aligned(4)));

extern "C" {
extern const long kN;     // length, or -1: an argument
extern const int kRows;   // tile height
extern const int kWidth;  // tile width in vectors
extern const bool kTwice;

struct ToyArgs {
  const float* a;  // [steps][kRows]
  const float* b;  // [steps][kWidth * lanes]
  float* out;      // [kRows][kWidth * lanes]
  long n;          // steps
};

// out = sum over steps of a (x) b, twice that if kTwice.
void rlk_toy_outer(const ToyArgs* args) {
  const long n = kN < 0 ? args->n : kN;
  Vector sums[32][4];
#pragma clang loop unroll(full)
  for (int r = 0; r < kRows; ++r) {
#pragma clang loop unroll(full)
    for (int c = 0; c < kWidth; ++c) sums[r][c] = Vector{};
  }
  for (long i = 0; i < n; ++i) {
#pragma clang loop unroll(full)
    for (int r = 0; r < kRows; ++r) {
#pragma clang loop unroll(full)
      for (int c = 0; c < kWidth; ++c) {
        sums[r][c] += args->a[i * kRows + r] * *(const Vector*)(args->b + (i * kWidth + c) * lanes);
      }
    }
  }
#pragma clang loop unroll(full)
  for (int r = 0; r < kRows; ++r) {
#pragma clang loop unroll(full)
    for (int c = 0; c < kWidth; ++c) {
      *(Vector*)(args->out + (r * kWidth + c) * lanes) = kTwice ? sums[r][c] * 2.0f : sums[r][c];
    }
  }
}

int rlk_toy_lanes() { return lanes; }

// A table in read-only data, read through an index.
float rlk_toy_table(int i) {
  static const float table[] = {1.5f, 2.5f, 4.25f, 8.125f};
  return table[i & 3];
}

// A loop whose sum is not used once kTwice is known, among others of the same length: its
// comparisons become the same in every turn, which indvars tells an analysis of its own.
struct ToyGroups {
  const double* x;
  float* out;
  long size, num_groups;
};
void rlk_toy_groups(const ToyGroups* args) {
  const ToyGroups& a = *args;
#pragma clang loop unroll(disable)
  for (long i = 0; i < a.num_groups; ++i) {
    const long first = i * a.size, last = first + a.size;
    double sum = 0.0;
    bool equal = true;
#pragma clang loop unroll(disable)
    for (long j = first; j < last; ++j) {
      equal = equal && a.x[j] == a.x[first];
      sum += a.x[j];
    }
    const double mean = sum / static_cast<double>(last - first);
    double squares = 0.0;
#pragma clang loop unroll(disable)
    for (long j = first; j < last; ++j) squares += (a.x[j] - mean) * (a.x[j] - mean);
    const double below = kTwice ? 1.0 : squares;
#pragma clang loop unroll(disable)
    for (long j = first; j < last; ++j) {
      a.out[j] = equal ? 0.0f : static_cast<float>((a.x[j] - mean) / below);
    }
  }
}

// --- what must be refused ---

extern const double kFloating;
double rlk_toy_floating() { return kFloating; }

// A loop that cannot be unrolled fully: its length is an argument.
float rlk_toy_not_unrolled(const float* a, int n) {
  float sum = 0;
#pragma clang loop unroll(full)
  for (int i = 0; i < n; ++i) sum += a[i];
  return sum;
}

void rlk_not_there(float*);
void rlk_toy_calls_out(float* a) { rlk_not_there(a); }

int rlk_toy_state_value = 41;
int rlk_toy_state() { return ++rlk_toy_state_value; }

// An instruction that the level lacks ends LLVM's instruction selection with a fatal error.
typedef double Four __attribute__((vector_size(32)));
__attribute__((target("avx512f"))) void rlk_toy_fatal(float* a) {
  typedef float Sixteen __attribute__((vector_size(64), aligned(4)));
  typedef int SixteenInts __attribute__((vector_size(64)));
  const Sixteen x = *(Sixteen*)a;
  *(Sixteen*)a =
      (Sixteen)__builtin_ia32_cvtps2dq512_mask((Sixteen)x, (SixteenInts)x, (unsigned short)-1, 4);
}
}
