// SPDX-License-Identifier: Apache-2.0
// cuLibraryLoadData, which needs no context and serves all devices.
#include "runtime/cuda/cuda_loader.hpp"

#include <elf.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>

namespace rlk::runtime::cuda {
namespace {

// Errors that are about the bytes: another build of the kernel may load. The driver
// delays the compile of PTX, so they come from cuLibraryGetKernel as well as from the load.
bool is_about_code(Result code) {
  switch (code) {
    case result::invalid_image:
    case result::no_binary_for_gpu:
    case result::invalid_ptx:
    case result::jit_compiler_not_found:
    case result::unsupported_ptx_version:
    case result::jit_compilation_disabled:
    case result::invalid_source:
    case result::not_found:
      return true;
    default:
      return false;
  }
}

// A loaded library and its entries; LoadedKernel::image.
class CudaImage {
 public:
  CudaImage(Driver& driver, Library library) : driver_(driver), library_(library) {}
  CudaImage(const CudaImage&) = delete;
  CudaImage& operator=(const CudaImage&) = delete;
  ~CudaImage() {
    // For code that loads in part: a kernel that was given out stays. In this mode other threads'
    // captures are left alone. An error here means that the driver is shutting down, and has
    // unloaded it, or that this is a forked child, which has no devices.
    CaptureMode mode = CaptureMode::relaxed;
    driver_.table().exchange_capture_mode(&mode);
    driver_.table().library_unload(library_);
    driver_.table().exchange_capture_mode(&mode);
  }

  LoadedEntry* add(const char* name) {
    Kernel kernel = nullptr;
    const Result code = driver_.table().library_get_kernel(&kernel, library_, name);
    if (code == result::not_found)
      throw LoadError("CUDA code: expected an entry {}, found none", name);
    if (is_about_code(code)) {
      throw LoadError("CUDA code: the driver refuses it at entry {}: {}", name,
                      driver_.error_name(code));
    }
    driver_.check(code, "cuLibraryGetKernel");
    return &entries_.emplace_back(driver_, kernel, name);
  }

 private:
  Driver& driver_;
  Library library_;
  std::deque<LoadedEntry> entries_;  // their addresses are given out
};

// The driver is told no size and reads on until the code's own end, so the end must be there.
bool is_whole(std::span<const std::byte> code) {
  const std::string_view text(reinterpret_cast<const char*>(code.data()), code.size());
  if (!text.starts_with(ELFMAG)) return !text.empty() && text.back() == '\0';
  Elf64_Ehdr header;
  if (code.size() < sizeof(header)) return false;
  std::memcpy(&header, code.data(), sizeof(header));
  const auto fits = [&](std::uint64_t offset, std::uint64_t bytes) {
    return offset <= code.size() && bytes <= code.size() - offset;
  };
  return fits(header.e_shoff, std::uint64_t{header.e_shnum} * header.e_shentsize) &&
         fits(header.e_phoff, std::uint64_t{header.e_phnum} * header.e_phentsize);
}

Library load_library(Driver& driver, std::span<const std::byte> code) {
  std::array<char, 4096> log{};
  std::array options{JitOption::error_log, JitOption::error_log_bytes};
  // An array of void* to the driver, which puts a number into the second.
  std::array values{reinterpret_cast<std::uintptr_t>(log.data()), log.size() - 1};
  Library library = nullptr;
  const Result result = driver.table().library_load_data(&library, code.data(), options.data(),
                                                         reinterpret_cast<void**>(values.data()), 2,
                                                         nullptr, nullptr, 0);
  if (result == result::success) return library;
  const std::string note = log.data();
  if (!is_about_code(result)) driver.fail(result, "cuLibraryLoadData", note);
  throw LoadError("CUDA code: the driver, of CUDA {}.{}, refuses it: {}{}{}",
                  driver.version() / 1000, driver.version() % 1000 / 10, driver.error_name(result),
                  note.empty() ? "" : ": ", note);
}

class CudaLoader final : public Loader {
 public:
  explicit CudaLoader(std::function<Driver&()> driver) : driver_(std::move(driver)) {}

  Target target(int index) override {
    const DeviceInfo& device = find_device(index);
    if (device.target) return *device.target;
    throw Unsupported(Fault{"", "device", "compute capability 8.0 or later",
                            fmt::format("{}.{} ({})", device.major, device.minor, device.name)});
  }

  DeviceModel model(int index) override {
    const DeviceInfo& device = find_device(index);
    const int version = driver_().version();
    return {device.name, fmt::format("{}.{}", version / 1000, version % 1000 / 10)};
  }

  void load(LoadedKernel& kernel, std::span<const std::byte> code,
            std::span<const char* const> entries) override {
    if (!is_whole(code)) {
      throw LoadError("CUDA code: expected a cubin or PTX with its final zero, got neither");
    }
    Driver& driver = driver_();
    driver.init();
    const RelaxedCapture relaxed(driver);
    auto image = std::make_shared<CudaImage>(driver, load_library(driver, code));
    for (std::size_t i = 0; i < entries.size(); ++i) kernel.entries[i] = image->add(entries[i]);
    kernel.image = std::move(image);
  }

  void prepare(const LoadedKernel& kernel, int device) override {
    for (void* entry : kernel.entries) {
      if (entry != nullptr) static_cast<LoadedEntry*>(entry)->prepare(device);
    }
  }

  bool is_capturing(int device, void* stream) override {
    return cuda::is_capturing(driver_(), device, static_cast<Stream>(stream));
  }

 private:
  const DeviceInfo& find_device(int index) {
    try {
      return driver_().device(index);
    } catch (const LoadError& error) {
      throw Unsupported("device: expected a machine with a CUDA driver: {}", error.what());
    }
  }

  std::function<Driver&()> driver_;
};

}  // namespace

std::unique_ptr<Loader> make_cuda_loader(std::function<Driver&()> driver) {
  return std::make_unique<CudaLoader>(std::move(driver));
}

}  // namespace rlk::runtime::cuda
