// SPDX-License-Identifier: Apache-2.0
// Finds entries and reads their metadata.
#include "cli/kernel.hpp"

#include "cli/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <unordered_set>

namespace rlk::cli {
namespace {

constexpr std::size_t k_most_candidates = 20;

// Takes what list shows out of the metadata without building the whole document: the listing of a
// large cache is mostly this.
class MetadataReader : public nlohmann::json_sax<Json> {
 public:
  explicit MetadataReader(Kernel& kernel) : kernel_(kernel) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool string(string_t& value) override {
    if (depth_ == 1 && key_ == "name") kernel_.name = value;
    if (depth_ == 1 && key_ == "target") kernel_.target = value;
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return ++depth_ > 0; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return ++depth_ > 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool key(string_t& value) override {
    key_ = value;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  bool number(double value) {
    if (depth_ != 1 || !(value >= 0 && value < 1e18)) return true;
    if (key_ == "compile_ms") kernel_.compile_ms = value;
    if (key_ == "code_bytes") kernel_.code_bytes = static_cast<std::uint64_t>(value);
    if (key_ == "created") kernel_.created_s = static_cast<std::int64_t>(value);
    return true;
  }

  Kernel& kernel_;
  int depth_ = 0;
  std::string key_;
};

std::string file_stem(const Kernel& kernel) {
  return kernel.entry.digest + '.' + kernel.entry.compiler;
}

// An entry that an upper layer has too is hidden by it, as it is for a get.
void drop_hidden(std::vector<const Kernel*>& found) {
  std::unordered_set<std::string> seen;
  std::erase_if(found,
                [&](const Kernel* kernel) { return !seen.insert(file_stem(*kernel)).second; });
}

void tell_candidates(const Context& context, const std::string& word,
                     const std::vector<const Kernel*>& found) {
  context.err << fmt::format("rlk-jit: \"{}\": {} entries match; give more of one's key:\n",
                             printable(word), found.size());
  Table table({{}, {}, {}});
  for (std::size_t i = 0; i < std::min(found.size(), k_most_candidates); ++i) {
    table.add(
        {{found[i]->entry.digest}, {printable(found[i]->entry.compiler)}, {shown_name(*found[i])}});
  }
  table.print(context.err, false);
  if (found.size() > k_most_candidates) {
    context.err << fmt::format("... and {} more\n", found.size() - k_most_candidates);
  }
}

}  // namespace

Kernel kernel_of(cache::ListedEntry entry) {
  Kernel kernel;
  kernel.entry = std::move(entry);
  kernel.created_s = kernel.entry.modified_s;
  if (kernel.entry.problem.empty()) {
    MetadataReader reader(kernel);
    Json::sax_parse(kernel.entry.metadata, &reader);
  }
  return kernel;
}

std::vector<Kernel> all_kernels(const Context& context) {
  cache::DiskStore store(layers_of(context).options);
  std::vector<Kernel> kernels;
  const auto sort_from = [&](std::size_t begin) {
    std::sort(kernels.begin() + static_cast<std::ptrdiff_t>(begin), kernels.end(),
              [](const Kernel& a, const Kernel& b) {
                return std::tie(a.name, a.entry.path) < std::tie(b.name, b.entry.path);
              });
  };
  std::size_t begin = 0;  // of the layer at hand
  for (cache::ListedEntry& entry : store.list()) {
    if (!kernels.empty() && kernels.back().entry.layer.folder != entry.layer.folder) {
      sort_from(begin);
      begin = kernels.size();
    }
    kernels.push_back(kernel_of(std::move(entry)));
  }
  sort_from(begin);
  return kernels;
}

std::optional<Kernel> find_kernel(const Context& context, const std::string& word) {
  const std::vector<Kernel> kernels = all_kernels(context);
  using Rule = std::function<bool(const Kernel&)>;
  const Rule rules[] = {
      [&](const Kernel& kernel) { return kernel.name == word; },
      [&](const Kernel& kernel) { return file_stem(kernel).starts_with(word); },
      [&](const Kernel& kernel) { return kernel.name.find(word) != std::string::npos; },
  };
  for (const Rule& matches : rules) {
    std::vector<const Kernel*> found;
    for (const Kernel& kernel : kernels) {
      if (matches(kernel)) found.push_back(&kernel);
    }
    drop_hidden(found);
    if (found.size() == 1) return *found.front();
    if (!found.empty()) {
      tell_candidates(context, word, found);
      return std::nullopt;
    }
  }
  context.err << fmt::format("rlk-jit: \"{}\": no entry has this name or key; see rlk-jit list\n",
                             printable(word));
  return std::nullopt;
}

std::string shown_name(const Kernel& kernel) {
  if (!kernel.entry.problem.empty()) return '(' + printable(kernel.entry.problem) + ')';
  return kernel.name.empty() ? "(no name)" : printable(kernel.name);
}

void print_json(std::ostream& out, const Json& json) {
  out << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace rlk::cli
