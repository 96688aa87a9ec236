// SPDX-License-Identifier: Apache-2.0
// One list of the fields, which the writer and the reader both follow.
#include "jit/metadata.hpp"

#include "jit/op.hpp"

#include <nlohmann/json.hpp>

#include <ctime>
#include <type_traits>

namespace rlk::jit {
namespace {

// In the order on disk. What a listing shows comes first: it reads no further.
constexpr int k_num_listed = 7;
template <class Metadata, class Visit>
void visit_fields(Metadata& metadata, const Visit& visit) {
  visit("name", metadata.name);
  visit("target", metadata.target);
  visit("generic", metadata.generic);
  visit("compiler", metadata.compiler);
  visit("created", metadata.created_s);
  visit("compile_ms", metadata.stats.compile_ms);
  visit("code_bytes", metadata.stats.code_bytes);
  visit("options", metadata.options);
  visit("entries", metadata.entries);
  visit("constants", metadata.constants);
  visit("registers", metadata.stats.registers);
  visit("shared_bytes", metadata.stats.shared_bytes);
  visit("dynamic_shared_bytes", metadata.dynamic_shared_bytes);
  visit("local_bytes", metadata.stats.local_bytes);
  visit("spilled_bytes", metadata.stats.spilled_bytes);
  visit("num_spills", metadata.stats.num_spills);
}

template <class T>
constexpr bool is_number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

// Reads without building a document, since the listing of a large cache is mostly this.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Reader(bool only_listed) : only_listed_(only_listed) {}

  EntryMetadata take() { return std::move(metadata_); }
  bool is_object() const { return is_object_; }

  bool null() override { return true; }
  bool boolean(bool value) override { return found(value); }
  bool number_integer(number_integer_t value) override { return found(value); }
  bool number_unsigned(number_unsigned_t value) override { return found(value); }
  bool number_float(number_float_t value, const string_t&) override { return found(value); }
  bool string(string_t& value) override { return found(value); }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    is_object_ = is_object_ || depth_ == 0;
    return ++depth_ > 0;
  }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return ++depth_ > 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool key(string_t& value) override {
    (depth_ == 1 ? label_ : inner_label_) = value;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  // Whether to read on.
  template <class Value>
  bool found(const Value& value) {
    if (depth_ != 1 && depth_ != 2) return true;
    int index = 0;
    visit_fields(metadata_, [&](const char* label, auto& field) {
      if (label_ == label && set(field, value) && index < k_num_listed) ++num_listed_;
      ++index;
    });
    return !only_listed_ || num_listed_ < k_num_listed;
  }

  template <class Field, class Value>
  bool set(Field& field, const Value& value) {
    if constexpr (is_number<Field> && is_number<Value>) {
      constexpr double k_most = std::is_same_v<Field, int> ? 2e9 : 1e18;
      if (depth_ != 1 || !(value >= 0 && static_cast<double>(value) < k_most)) return false;
      field = static_cast<Field>(value);
      return true;
    } else if constexpr (std::is_same_v<Field, Value>) {
      if (depth_ == 1) field = value;
      return depth_ == 1;
    } else if constexpr (std::is_same_v<Field, std::vector<Value>>) {
      if (depth_ == 2) field.push_back(value);
    } else if constexpr (std::is_same_v<Field, std::vector<NamedConstant>> &&
                         std::is_integral_v<Value> && is_number<Value>) {
      if (depth_ == 2) field.push_back({inner_label_, static_cast<std::int64_t>(value)});
    }
    return false;
  }

  EntryMetadata metadata_;
  bool only_listed_;
  bool is_object_ = false;
  int num_listed_ = 0;
  int depth_ = 0;
  std::string label_, inner_label_;
};

}  // namespace

std::string to_json(const EntryMetadata& metadata) {
  nlohmann::ordered_json json;
  visit_fields(metadata, [&]<class Field>(const char* label, const Field& field) {
    if constexpr (std::is_same_v<Field, std::vector<NamedConstant>>) {
      for (const NamedConstant& constant : field) json[label][constant.name] = constant.value;
    } else if constexpr (is_number<Field>) {
      if (field >= 0) json[label] = field;
    } else {
      json[label] = field;
    }
  });
  return json.dump();
}

std::optional<EntryMetadata> metadata_from_json(std::string_view json) {
  Reader reader(false);
  if (!nlohmann::json::sax_parse(json, &reader) || !reader.is_object()) return std::nullopt;
  return reader.take();
}

EntryMetadata listed_metadata(std::string_view json) {
  Reader reader(true);
  nlohmann::json::sax_parse(json, &reader);
  return reader.take();
}

std::string metadata(const Specialization& spec, const CompileRequest& request,
                     const CompileStats& stats, const std::string& compiler) {
  const bool is_cuda = backend(spec.target) == Backend::cuda;
  return to_json({.name = request.name,
                  .target = request.target,
                  .generic = spec.is_generic(),
                  .compiler = compiler,
                  .created_s = std::time(nullptr),
                  .stats = stats,
                  .dynamic_shared_bytes = is_cuda ? spec.op->dynamic_shared_bytes(spec) : -1,
                  .options = request.options,
                  .entries = request.entries,
                  .constants = request.constants});
}

std::string without_times(const std::string& metadata) {
  auto read = metadata_from_json(metadata).value_or(EntryMetadata());
  read.created_s = -1;
  read.stats.compile_ms = -1;
  return to_json(read);
}

std::string compiler_named(const std::string& metadata) {
  const auto read = metadata_from_json(metadata);
  return read && !read->compiler.empty() ? read->compiler : "an unknown compiler";
}

}  // namespace rlk::jit
