// A data race in a kernel that PyTorch's dispatcher calls. Built with the thread sanitizer alone, whose report is what its test expects: the
// suppressions of cmake/sanitizers/threads.txt hide races inside of libraries, not those of code that they call.
#include <atomic>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace {

int64_t planted_counter = 0;  // which two threads change without a lock

at::Tensor planted_kernel(const at::Tensor& x) {
  for (int i = 0; i < 1000; ++i) planted_counter = planted_counter + 1;
  return x;
}

TORCH_LIBRARY(planted, m) {
  m.def("race(Tensor x) -> Tensor");
  m.impl("race", c10::DispatchKey::CPU, TORCH_FN(planted_kernel));
}

}  // namespace

int main() {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("planted::race", "");
  std::atomic<int> waiting{2};
  const auto run = [&] {
    for (waiting.fetch_sub(1, std::memory_order_relaxed); waiting.load(std::memory_order_relaxed) > 0;) {
    }
    torch::jit::Stack stack{at::ones({1})};  // one of its own: whoever counts references to the same one waits for the other
    op.callBoxed(stack);
  };
  std::thread first(run), second(run);
  first.join();
  second.join();
}
