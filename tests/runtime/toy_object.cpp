// SPDX-License-Identifier: Apache-2.0
// Compiled by the build to objects for the loader's tests: one that loads, others that must not.
extern "C" {

int rlk_toy_add(int a, int b) { return a + b; }

float rlk_toy_table(int i) {
  static const float table[] = {1.5f, 2.5f, 4.25f, 8.125f};
  return table[i & 3];
}

__attribute__((noinline)) int rlk_toy_square(int a) { return a * a; }
int rlk_toy_square_plus_one(int a) { return rlk_toy_square(a) + 1; }

#ifdef RLK_TOY_UNDEFINED
void rlk_toy_not_there(float*);
void rlk_toy_calls_out(float* a) { rlk_toy_not_there(a); }
#endif

#ifdef RLK_TOY_WRITABLE
int rlk_toy_count() {
  static int count = 41;
  return ++count;
}
#endif

#ifdef RLK_TOY_ZEROED
int rlk_toy_count() {
  static int count;
  return ++count;
}
#endif
}
