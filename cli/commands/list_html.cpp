// SPDX-License-Identifier: Apache-2.0
// rlk-jit list --html: one page that needs nothing else, not even a network.
#include "cache/files/new_file.hpp"
#include "cache/files/sha256.hpp"
#include "cache/usage_log.hpp"
#include "cli/commands.hpp"
#include "cli/page.hpp"
#include "cli/query/cached_kernel.hpp"
#include "cli/query/for_each.hpp"
#include "cli/query/usage_counts.hpp"
#include "cli/text/output_path.hpp"
#include "cli/text/text.hpp"
#include "runtime/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <unordered_map>

namespace rlk::cli {
namespace {

using CountsByName = std::unordered_map<std::string, Counts>;

// The fields of a row, in order; the page's script names them.
constexpr std::array k_columns = {"name",
                                  "target",
                                  "compiler",
                                  "key",
                                  "layer",
                                  "problem",
                                  "file_bytes",
                                  "code_bytes",
                                  "registers",
                                  "spilled_bytes",
                                  "num_spills",
                                  "shared_bytes",
                                  "dynamic_shared_bytes",
                                  "local_bytes",
                                  "compile_ms",
                                  "created",
                                  "last_used",
                                  "hits",
                                  "compiles",
                                  "failed",
                                  "fallbacks"};

Json row_of(const Context& context, const CachedKernel& kernel,
            const CountsByName& counts_by_name) {
  const cache::ListedEntry& entry = kernel.entry;
  const jit::EntryMetadata metadata =
      jit::metadata_from_json(entry.metadata).value_or(kernel.metadata);
  const auto found = counts_by_name.find(kernel.name());
  const Counts counts = found != counts_by_name.end() ? found->second : Counts();
  return {printable(kernel.name()),
          printable(kernel.metadata.target),
          printable(entry.compiler),
          entry.digest,
          printable(layer_name(context, entry.layer)),
          printable(entry.problem),
          entry.file_bytes,
          or_null(kernel.metadata.stats.code_bytes),
          or_null(metadata.stats.registers),
          or_null(metadata.stats.spilled_bytes),
          or_null(metadata.stats.num_spills),
          or_null(metadata.stats.shared_bytes),
          or_null(metadata.dynamic_shared_bytes),
          or_null(metadata.stats.local_bytes),
          or_null(kernel.metadata.stats.compile_ms),
          kernel.metadata.created_s,
          entry.modified_s,
          counts.hits,
          counts.compiles,
          counts.failed,
          counts.fallbacks};
}

// JSON for a script element: ASCII, and no "<", which could end the element or begin a comment.
std::string script_text(const Json& json) {
  const std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";  // only strings hold one
    } else {
      safe.push_back(c);
    }
  }
  return safe;
}

std::string data_of(const Context& context, const ListFilter& filter) {
  const jit::Layers layers = layers_of(context);
  const std::vector<CachedKernel> kernels = all_kernels(context, filter);
  CountsByName counts;
  for (const cache::Usage& usage : cache::UsageLog(layers.options).read()) {
    counts[usage.kernel].add(usage);
  }
  std::vector<std::string> rows(kernels.size());
  for_each_entry(rows.size(), [&](std::size_t i) {
    rows[i] = script_text(row_of(context, kernels[i], counts));
  });
  const Json head = {{"version", RLK_VERSION},
                     {"now", static_cast<std::int64_t>(std::time(nullptr))},
                     {"folder", printable(layers.options.read_write.value_or(""))},
                     {"columns", k_columns}};
  std::string text = script_text(head);
  text.pop_back();  // the brace
  text += ",\"rows\":[";
  for (std::size_t i = 0; i < rows.size(); ++i) text += (i == 0 ? "\n" : ",\n") + rows[i];
  return text + "\n]}";
}

std::string base64(const cache::Sha256::Digest& bytes) {
  constexpr std::string_view k_digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t num_bytes = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t k = 0; k < 3; ++k) group = group << 8 | (k < num_bytes ? bytes[i + k] : 0u);
    for (std::size_t k = 0; k < 4; ++k) {
      text.push_back(k <= num_bytes ? k_digits[group >> (18 - 6 * k) & 63] : '=');
    }
  }
  return text;
}

// 'sha256-...': this text alone may run, or style.
std::string source_of(std::string_view text) {
  cache::Sha256 sum;
  sum.update(text);
  return fmt::format("'sha256-{}'", base64(sum.digest()));
}

std::string page_of(const Context& context, const ListFilter& filter) {
  const std::string policy = fmt::format(
      "default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'",
      source_of(page::k_script), source_of(page::k_style));
  const std::string data = data_of(context, filter);
  std::string text;
  std::string_view rest = page::k_html;
  // In the order of the page, so that nothing that was put in is looked through.
  const std::pair<std::string_view, std::string_view> parts[] = {{"@POLICY@", policy},
                                                                 {"@STYLE@", page::k_style},
                                                                 {"@DATA@", data},
                                                                 {"@SCRIPT@", page::k_script}};
  for (const auto& [mark, part] : parts) {
    const std::size_t at = rest.find(mark);
    text.append(rest.substr(0, at)).append(part);
    rest.remove_prefix(at + mark.size());
  }
  return text.append(rest);
}

}  // namespace

int list_html(const Context& context, const ListFilter& filter, const std::string& path) {
  if (context.json) throw InvalidArgument("expected --html or --json, got both");
  tell_layers(context);
  const std::string page = page_of(context, filter);
  if (path == "-") {
    context.out << page;
    return ok;
  }
  const std::string output = output_path(path);
  cache::NewFile file(cache::posix_file_system(), cache::name_beside(output), std::nullopt);
  file.write(page);
  if (const int error = file.publish(output); error != 0) {
    return tell(context, fmt::format("{}: not written: {}", path, cache::error_text(error)));
  }
  return ok;
}

}  // namespace rlk::cli
