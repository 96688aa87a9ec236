// SPDX-License-Identifier: Apache-2.0
// rlk-jit show --source, --ptx and --sass: that text alone on stdout.
#include "cache/files/bytes.hpp"
#include "cli/commands.hpp"
#include "cli/query/kernel_query.hpp"
#include "cli/run_tool.hpp"
#include "cli/text/text.hpp"
#include "jit/build_key.hpp"
#include "jit/nvrtc/nvrtc_compiler.hpp"
#include "jit/op.hpp"
#include "runtime/error.hpp"
#include "runtime/settings.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rlk::cli {
namespace {

using Payload = std::vector<std::byte>;

// The bytes come from a file or a tool; lines and tabs alone may steer the terminal.
void print_text(const Context& context, std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find_first_of("\n\t");
    context.out << printable(text.substr(0, end));
    if (end == text.npos) break;
    context.out << text[end];
    text.remove_prefix(end + 1);
  }
}

int show_source(const Context& context, const std::string& word) {
  const auto query = parse_kernel_query(context, word);
  if (!query) return failed;
  const jit::Specialization& spec = query->spec;
  const jit::CompileRequest request = jit::compile_request(spec);
  const std::string_view digest = jit::source_of(spec).digest;
  context.out << "// " << request.name << "\n// template, SHA-256: " << digest << '\n';
  if (query->kernel) {
    for (const auto& field :
         cache::decode_key(query->kernel->entry.key).value_or(std::vector<cache::KeyField>())) {
      if (field.tag != "template" || field.value == digest) continue;
      context.out << "// The entry was made from another one: " << printable(field.value) << '\n';
    }
  }
  if (backend(spec.target) == Backend::cuda) {
    context.out << fmt::format("// options: {}\n", fmt::join(request.options, " "));
    context.out << jit::nvrtc_source(request);
    return ok;
  }
  context.out << fmt::format(
      "// The template is LLVM bitcode; its text is templates/{}/kernel_cpu.cpp of rlk's source.\n"
      "// Set before it is compiled for {}:\n",
      spec.op->name, request.target);
  for (const auto& [name, value] : request.constants) {
    context.out << fmt::format("extern const long long {} = {};\n", name, value);
  }
  return ok;
}

// What stands in an ELF's header; 0 of what is none.
std::uint16_t elf_machine(const Payload& payload) {
  if (payload.size() < sizeof(Elf64_Ehdr)) return 0;
  const std::string_view bytes = cache::as_text(payload);
  if (!bytes.starts_with(ELFMAG)) return 0;
  return cache::load_little_endian<std::uint16_t>(payload.data() + offsetof(Elf64_Ehdr, e_machine));
}

Payload read_payload(const Context& context, const CachedKernel& kernel) {
  auto read = cache::DiskStore(layers_of(context).options).read(kernel.entry);
  if (read.status == cache::ReadStatus::ok) return std::move(read.entry.payload);
  throw LoadError("{}: {}", printable(kernel.entry.path),
                  read.status == cache::ReadStatus::absent ? "vanished" : printable(read.problem));
}

int show_ptx(const Context& context, const Payload& payload) {
  const std::uint16_t machine = elf_machine(payload);
  if (machine != 0) {
    throw Unsupported("--ptx: expected PTX, got {}; --sass shows it",
                      machine == EM_CUDA ? "a cubin" : "an object for the CPU");
  }
  std::string_view text = cache::as_text(payload);
  if (text.ends_with('\0')) text.remove_suffix(1);
  print_text(context, text);
  return ok;
}

std::filesystem::path expect_tool(const std::string& name, const std::string& comes_with,
                                  const std::vector<std::string>& more_folders) {
  if (auto tool = find_tool(name, more_folders)) return *tool;
  std::string where = "PATH";
  for (const auto& folder : more_folders) where += ", " + folder;
  throw Unsupported("--sass: expected {} in {}; it comes with {}", name, where, comes_with);
}

int show_sass(const Context& context, const Payload& payload) {
  const std::uint16_t machine = elf_machine(payload);
  if (machine == 0) throw Unsupported("--sass: expected machine code, got PTX; --ptx shows it");
  if (machine != EM_CUDA) {
    const auto tool = expect_tool("objdump", "GNU binutils", {});
    print_text(context, run_tool(tool, {"--disassemble", "--demangle"}, payload));
    return ok;
  }
  std::vector<std::string> folders;
  if (const auto home = folder_if_given(process_environment, "CUDA_HOME")) {
    folders.push_back(*home + "/bin");
  }
  folders.emplace_back("/usr/local/cuda/bin");
  const auto tool = expect_tool("nvdisasm", "the CUDA toolkit", folders);
  print_text(context, run_tool(tool, {"--print-code"}, payload));
  return ok;
}

}  // namespace

int show_code(const Context& context, const std::string& word, Code code) {
  if (context.json) {
    throw InvalidArgument("--json: expected none of --source, --ptx and --sass beside it");
  }
  if (code == Code::source) return show_source(context, word);
  const auto kernel = find_kernel(context, word);
  if (!kernel) return failed;
  const Payload payload = read_payload(context, *kernel);
  return code == Code::ptx ? show_ptx(context, payload) : show_sass(context, payload);
}

}  // namespace rlk::cli
