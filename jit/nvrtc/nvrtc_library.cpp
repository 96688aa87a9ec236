// SPDX-License-Identifier: Apache-2.0
// Opens NVRTC and runs one program through it.
#include "jit/nvrtc/nvrtc_library.hpp"

#include "runtime/error.hpp"
#include "runtime/shared_library.hpp"

namespace rlk::jit {
namespace {

using runtime::SharedLibrary;

// The same for every program: it enters names inside the code, and so the code's bytes.
constexpr const char* k_program_name = "rlk_kernel.cu";

class Program {
 public:
  Program(const NvrtcTable& nvrtc, const std::string& source) : nvrtc_(nvrtc) {
    check(nvrtc.create_program(&program_, source.c_str(), k_program_name, 0, nullptr, nullptr),
          "nvrtcCreateProgram");
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { nvrtc_.destroy_program(&program_); }

  void cancel_where(const std::function<bool()>& is_cancelled) {
    if (!is_cancelled || nvrtc_.set_flow_callback == nullptr) return;
    const auto ask = [](void* payload, void*) {
      return (*static_cast<const std::function<bool()>*>(payload))() ? 1 : 0;
    };
    nvrtc_.set_flow_callback(program_, ask, const_cast<std::function<bool()>*>(&is_cancelled));
  }

  int compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    pointers.reserve(options.size());
    for (const auto& option : options) pointers.push_back(option.c_str());
    return nvrtc_.compile_program(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  template <class Size, class Get>
  std::string fetch(Size size, Get get, const char* call) const {
    std::size_t bytes = 0;
    check(size(program_, &bytes), call);
    std::string text(bytes, '\0');
    if (bytes != 0) check(get(program_, text.data()), call);
    return text;
  }

 private:
  void check(int code, const char* call) const {
    if (code != 0) throw CompileError("{}: {} ({})", call, nvrtc_.error_string(code), code);
  }

  const NvrtcTable& nvrtc_;
  NvrtcProgram program_ = nullptr;
};

}  // namespace

NvrtcTable open_nvrtc(const NvrtcLibrary& found) {
  // NVRTC asks for its builtins by bare name, and not every wheel tells the linker to look beside
  // the library. Once open from here they answer to that name.
  auto builtins = SharedLibrary::open(found.builtins.string());
  auto library = SharedLibrary::open(found.path.string());
  NvrtcTable table;
  table.error_string = library.function<const char*(int)>("nvrtcGetErrorString");
#define RLK_NVRTC_ASK(member, symbol, parameters) \
  table.member = library.function<std::remove_pointer_t<decltype(table.member)>>(#symbol);
  RLK_NVRTC_FUNCTIONS(RLK_NVRTC_ASK)
#undef RLK_NVRTC_ASK
  table.set_flow_callback =
      reinterpret_cast<decltype(table.set_flow_callback)>(library.find("nvrtcSetFlowCallback"));
  builtins.keep_open();
  library.keep_open();
  int major = 0, minor = 0;
  if (table.version(&major, &minor) != 0 || major != found.major || minor != found.minor) {
    // Its code would be stored under another compiler's name.
    throw LoadError("{}: expected NVRTC {}.{}, got {}.{}", found.path.string(), found.major,
                    found.minor, major, minor);
  }
  return table;
}

NvrtcOutput run_nvrtc(const NvrtcTable& nvrtc, const std::string& source,
                      const std::vector<std::string>& options, bool ptx,
                      const std::function<bool()>& is_cancelled) {
  Program program(nvrtc, source);
  program.cancel_where(is_cancelled);
  NvrtcOutput output;
  output.code = program.compile(options);
  output.log = program.fetch(nvrtc.log_size, nvrtc.log, "nvrtcGetProgramLog");
  while (!output.log.empty() && (output.log.back() == '\0' || output.log.back() == '\n')) {
    output.log.pop_back();
  }
  if (output.code != 0) {
    output.error = nvrtc.error_string(output.code);
    return output;
  }
  const std::string binary = ptx ? program.fetch(nvrtc.ptx_size, nvrtc.ptx, "nvrtcGetPTX")
                                 : program.fetch(nvrtc.cubin_size, nvrtc.cubin, "nvrtcGetCUBIN");
  const auto* bytes = reinterpret_cast<const std::byte*>(binary.data());
  output.binary.assign(bytes, bytes + binary.size());
  return output;
}

}  // namespace rlk::jit
