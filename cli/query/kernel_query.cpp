// SPDX-License-Identifier: Apache-2.0
// From a word of the command line to a Specialization.
#include "cli/query/kernel_query.hpp"

#include "cli/text/text.hpp"
#include "jit/parse_specialization.hpp"
#include "runtime/error.hpp"
#include "templates/registry.hpp"

namespace rlk::cli {

std::optional<KernelQuery> parse_kernel_query(const Context& context, const std::string& word) {
  std::string problem;
  try {
    return KernelQuery{jit::parse_specialization(word, templates::ops())};
  } catch (const InvalidArgument& error) {
    problem = error.what();
  }
  auto kernel = find_kernel(context, word);
  try {
    if (kernel) {
      const jit::Specialization spec = jit::parse_specialization(kernel->name(), templates::ops());
      return KernelQuery{spec, std::move(kernel)};
    }
  } catch (const InvalidArgument& error) {
    problem = "this build has no such kernel: " + std::string(error.what());
  }
  // Of a word without brackets it would only say that it is no whole name.
  if (kernel || word.find('[') != std::string::npos) {
    tell(context, problem);
  }
  return std::nullopt;
}

}  // namespace rlk::cli
