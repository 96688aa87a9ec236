// SPDX-License-Identifier: Apache-2.0
// What a call does whose kernel is not loaded: decided here alone, for who runs it and for who
// explains it.
#pragma once

#include "jit/compiler.hpp"
#include "jit/specialization.hpp"
#include "runtime/settings.hpp"

#include <string>

namespace rlk::jit {

// Who compiles a kernel, if anybody does.
struct CompilerAtHand {
  std::string identity;        // "": nothing is compiled
  std::string why_not;         // "": something is
  bool in_background = false;  // while another kernel runs, if there is one
};

CompilerAtHand compiler_at_hand(Policy policy, const Compiler& compiler);

// Where kernels lie that need not be compiled. Who means to run a kernel loads it when asked.
class Places {
 public:
  virtual bool is_loaded(const Specialization& spec) = 0;
  virtual bool is_cached(const Specialization& spec) = 0;  // in a layer

 protected:
  ~Places() = default;
};

enum class Origin { loaded, cache, compile, none };
std::string_view name(Origin origin);

// A kernel that runs in the place of a call's own one and gives the same bits.
enum class Fallback {
  none,
  alternative,  // specialized too, for another tile
  generic,
};

struct Decision {
  Specialization kernel;         // that runs
  Origin origin = Origin::none;  // none: nothing can run, the call throws Unsupported
  Fallback fallback = Fallback::none;
  bool in_background = false;  // meanwhile the call's own kernel is compiled
  std::string reason = {};     // in words
};

// Asks of a place until it has what runs, and of none afterwards.
Decision decide(const Specialization& spec, const CompilerAtHand& compiler, Places& places);

// Of a kernel that is in no place and is not compiled, for this reason.
Decision decide_fallback(const Specialization& spec, const std::string& reason, Places& places);

// The two kinds of fallback alone. Origin::none: there is none.
Decision find_alternative(const Specialization& spec, Places& places);
Decision find_generic(const Specialization& spec, Places& places);

}  // namespace rlk::jit
