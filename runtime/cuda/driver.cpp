// SPDX-License-Identifier: Apache-2.0
// Opens libcuda, fills the table, lists the devices.
#include "runtime/cuda/driver.hpp"

#include "runtime/shared_library.hpp"

#include <fmt/format.h>

namespace rlk::runtime::cuda {
namespace {

using GetProcAddress = Result(const char* symbol, void** function, int cuda_version,
                              std::uint64_t flags, int* status);

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The table's functions as CUDA 12.0 defines them: the driver picks the revision (_v2, ...).
DriverTable read_table(const SharedLibrary& library, const std::string& name) {
  // Absent before 12.0.
  void* address = library.find("cuGetProcAddress_v2");
  if (address == nullptr) {
    throw LoadError("CUDA driver: {}: expected a driver of CUDA 12.0 or later, got an older one",
                    name);
  }
  auto* get = reinterpret_cast<GetProcAddress*>(address);
  const auto ask = [&](const char* symbol) {
    void* function = nullptr;
    int status = 0;
    if (get(symbol, &function, k_oldest_driver, 0, &status) != result::success ||
        function == nullptr) {
      throw LoadError("CUDA driver: {}: expected a function {}, found none", name, symbol);
    }
    return function;
  };
  DriverTable table;
#define RLK_CUDA_ASK(member, symbol, parameters) \
  table.member = reinterpret_cast<decltype(table.member)>(ask(#symbol));
  RLK_CUDA_FUNCTIONS(RLK_CUDA_ASK)
#undef RLK_CUDA_ASK
  return table;
}

}  // namespace

Driver::Driver(const std::string& name) {
  auto library = [&] {
    try {
      return SharedLibrary::open(name);
    } catch (const LoadError& error) {
      throw LoadError("CUDA driver: {}", error.what());
    }
  }();
  table_ = read_table(library, name);
  check(table_.driver_get_version(&version_), "cuDriverGetVersion");
  if (version_ < k_oldest_driver) {
    throw LoadError("CUDA driver: {}: expected CUDA 12.0 or later, got {}", name,
                    version_text(version_));
  }
  library.keep_open();
}

struct Driver::Found {
  Driver* driver = nullptr;
  std::string why;

  // Never destroyed: threads may launch while statics are.
  static const Found& get() {
    static const Found* found = [] {
      auto* made = new Found;
      try {
        made->driver = new Driver;
      } catch (const Error& error) {
        made->why = error.what();
      }
      return made;
    }();
    return *found;
  }
};

Driver& Driver::instance() {
  const Found& found = Found::get();
  if (found.driver == nullptr) throw LoadError("{}", found.why);
  return *found.driver;
}

Driver* Driver::find(std::string* why) noexcept {
  const Found& found = Found::get();
  if (why != nullptr) *why = found.why;
  return found.driver;
}

void Driver::init() {
  if (initialized_.load(std::memory_order_acquire)) return;
  check(table_.init(0), "cuInit");
  initialized_.store(true, std::memory_order_release);
}

std::string Driver::error_name(Result code) const {
  const char* text = nullptr;
  if (table_.get_error_name(code, &text) != result::success || text == nullptr) {
    text = "unknown error";
  }
  return fmt::format("{} ({})", text, code);
}

void Driver::fail(Result code, const char* call, const std::string& note) const {
  const char* text = nullptr;
  if (table_.get_error_string(code, &text) != result::success || text == nullptr) text = "";
  std::string message = fmt::format("{}: {}", call, error_name(code));
  if (*text != '\0') message += fmt::format(": {}", text);
  if (!note.empty()) message += fmt::format(": {}", note);
  throw CallError(code, message);
}

const std::vector<DeviceInfo>& Driver::devices() {
  if (listed_.load(std::memory_order_acquire)) return devices_;
  init();
  const std::lock_guard lock(mutex_);
  if (listed_.load(std::memory_order_relaxed)) return devices_;
  int count = 0;
  check(table_.device_get_count(&count), "cuDeviceGetCount");
  std::vector<DeviceInfo> devices(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    DeviceInfo& info = devices[static_cast<std::size_t>(i)];
    check(table_.device_get(&info.ordinal, i), "cuDeviceGet");
    char name[256] = {};
    check(table_.device_get_name(name, sizeof(name) - 1, info.ordinal), "cuDeviceGetName");
    info.name = name;
    const auto ask = [&](int& value, DeviceAttribute attribute) {
      check(table_.device_get_attribute(&value, attribute, info.ordinal), "cuDeviceGetAttribute");
    };
    ask(info.major, DeviceAttribute::capability_major);
    ask(info.minor, DeviceAttribute::capability_minor);
    ask(info.num_sms, DeviceAttribute::num_sms);
    ask(info.shared_bytes_optin, DeviceAttribute::shared_bytes_optin);
    check(table_.device_total_mem(&info.memory_bytes, info.ordinal), "cuDeviceTotalMem");
    info.target = cuda_target(info.major, info.minor);
  }
  devices_ = std::move(devices);
  contexts_ = std::vector<std::atomic<Context>>(devices_.size());
  listed_.store(true, std::memory_order_release);
  return devices_;
}

const DeviceInfo& Driver::device(DeviceOrdinal ordinal) {
  const auto& all = devices();
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= all.size()) {
    throw InvalidArgument(Fault{"", "device", fmt::format("one of the {} CUDA devices", all.size()),
                                fmt::format("cuda:{}", ordinal)});
  }
  return all[static_cast<std::size_t>(ordinal)];
}

Context Driver::primary_context(DeviceOrdinal ordinal) {
  const DeviceInfo& info = device(ordinal);
  auto& slot = contexts_[static_cast<std::size_t>(ordinal)];
  if (Context context = slot.load(std::memory_order_acquire)) return context;
  const std::lock_guard lock(mutex_);
  if (Context context = slot.load(std::memory_order_relaxed)) return context;
  Context context = nullptr;
  check(table_.primary_ctx_retain(&context, info.ordinal), "cuDevicePrimaryCtxRetain");
  slot.store(context, std::memory_order_release);
  return context;
}

DeviceGuard::DeviceGuard(Driver& driver, DeviceOrdinal ordinal) : driver_(driver) {
  const Context wanted = driver.primary_context(ordinal);
  const DriverTable& table = driver.table();
  Context current = nullptr;
  driver.check(table.ctx_get_current(&current), "cuCtxGetCurrent");
  if (current == wanted) return;
  if (current != nullptr) {
    DeviceOrdinal device = -1;
    driver.check(table.ctx_get_device(&device), "cuCtxGetDevice");
    if (device == ordinal) return;
  }
  driver.check(table.ctx_push_current(wanted), "cuCtxPushCurrent");
  pushed_ = true;
}

DeviceGuard::~DeviceGuard() {
  Context ignored = nullptr;
  if (pushed_) driver_.table().ctx_pop_current(&ignored);
}

RelaxedCapture::RelaxedCapture(Driver& driver) : driver_(driver) {
  driver.check(driver.table().exchange_capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode");
}

RelaxedCapture::~RelaxedCapture() { driver_.table().exchange_capture_mode(&mode_); }

}  // namespace rlk::runtime::cuda
