// SPDX-License-Identifier: Apache-2.0
// One call of a generic kernel a backend, with a result that is known: what was found and compiled
// may still not load, or not run.
#include "cli/doctor/findings.hpp"
#include "cli/tune/bench.hpp"
#include "jit/build_key.hpp"
#include "jit/llvm_compiler.hpp"
#include "runtime/cuda/cuda_loader.hpp"
#include "templates/logp/op.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <list>

namespace rlk::cli {
namespace {

constexpr std::array<float, 8> k_logits = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::int64_t k_target = 3;

class CardWorkspace final : public runtime::Workspace {
 public:
  CardWorkspace(runtime::cuda::Driver& driver, int device) : driver_(driver), device_(device) {}
  void* allocate(std::size_t bytes) override {
    return pieces_.emplace_back(driver_, device_, bytes).data();
  }

 private:
  runtime::cuda::Driver& driver_;
  int device_;
  std::list<CardMemory> pieces_;
};

// Stages 5 to 10 of a call on this memory of the device: the logits, a target id, three results.
void call_logp(cache::DiskStore& store, jit::Compiler& compiler, runtime::Loader& loader,
               Target target, LogpCall& call, float* logits, std::int64_t* id, float* results) {
  call.op = &templates::logp_op;
  call.logits = dense_tensor(logits, DType::f32, call.device, {{1, std::int64_t{k_logits.size()}}});
  call.target = dense_tensor(id, DType::i64, call.device, {{1}});
  for (Tensor* result : {&call.log_prob, &call.row_max, &call.row_log_sum}) {
    *result = dense_tensor(results++, DType::f32, call.device, {{1}});
  }
  const jit::Specialization spec = call.op->specialize(call, target, {}).generic();
  const auto entry = store.get(jit::build_key(spec), "");
  const auto code = entry ? entry->payload : compiler.compile(jit::compile_request(spec)).code;
  LoadedKernel kernel;
  kernel.name = spec.text();
  kernel.target = target;
  kernel.constants = spec.values;
  loader.load(kernel, code, call.op->entries(call.pass, backend(target)));
  loader.prepare(kernel, call.device.index);
  call.op->launch(kernel, call, {});
}

float call_on_cpu(const Context& context, cache::DiskStore& store, Target target) {
  jit::LlvmCompiler compiler(context.settings.package_folder);
  const auto loader = runtime::make_cpu_loader();
  auto logits = k_logits;
  auto id = k_target;
  std::array<float, 3> results{};
  LogpCall call;
  call_logp(store, compiler, *loader, target, call, logits.data(), &id, results.data());
  return results[0];
}

float call_on_card(cache::DiskStore& store, const CudaMachine& machine, Target target, int device) {
  runtime::cuda::Driver& driver = *machine.driver;
  const runtime::cuda::DeviceGuard guard(driver, device);
  const auto loader =
      runtime::cuda::make_cuda_loader([&driver]() -> runtime::cuda::Driver& { return driver; });
  CardMemory logits(driver, device, sizeof(k_logits)), id(driver, device, sizeof(k_target)),
      results(driver, device, 3 * sizeof(float));
  logits.fill(k_logits.data(), sizeof(k_logits));
  id.fill(&k_target, sizeof(k_target));
  CardWorkspace workspace(driver, device);
  LogpCall call;
  call.device = {Device::Kind::cuda, device};
  call.workspace = &workspace;
  call_logp(store, machine.compiler, *loader, target, call, static_cast<float*>(logits.data()),
            static_cast<std::int64_t*>(id.data()), static_cast<float*>(results.data()));
  driver.check(driver.table().ctx_synchronize(), "cuCtxSynchronize");
  float log_prob = 0;
  results.read(&log_prob, sizeof(log_prob));
  return log_prob;
}

// Says of a finding what came of the call.
template <class Call>
void expect_result(Finding& finding, const std::string& where, const Call& call) {
  double sum = 0;
  for (const float logit : k_logits) sum += std::exp(double{logit});
  const double expected = k_logits[k_target] - std::log(sum);
  std::string problem;
  try {
    const float log_prob = call();
    if (std::abs(log_prob - expected) < 1e-5) {
      finding.text += fmt::format("; one was called{}", where);
      return;
    }
    problem = fmt::format("expected log p {:.6f}, got {:.6f}", expected, log_prob);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  finding.state = State::fail;
  finding.text += fmt::format("; a call{} fails: {}", where, problem);
}

}  // namespace

void call_kernels(const Context& context, cache::DiskStore& store, const CudaMachine& machine,
                  Findings& findings) {
  for (Finding& finding : findings) {
    const bool is_cpu = finding.subject == "cpu calls", is_cuda = finding.subject == "cuda calls";
    if ((!is_cpu && !is_cuda) || finding.state == State::fail ||
        !finding.details.contains("target")) {
      continue;
    }
    const Target target = *target_named(finding.details["target"].get<std::string>());
    if (is_cpu) {
      expect_result(finding, "", [&] { return call_on_cpu(context, store, target); });
      continue;
    }
    for (const auto& device : machine.driver->devices()) {
      if (!device.target || context.settings.arch.cuda.value_or(*device.target) != target) continue;
      expect_result(finding, fmt::format(" on cuda:{}", device.ordinal),
                    [&] { return call_on_card(store, machine, target, device.ordinal); });
    }
  }
}

}  // namespace rlk::cli
