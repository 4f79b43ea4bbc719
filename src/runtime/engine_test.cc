// The engine on a plugin that fails when told to: every failure is an exception that names it, nothing is lost, nothing leaks.
// The fake plugin computes nothing (every output is zeros), which is enough to see what is compiled, launched, kept and raised.
#include "runtime/engine.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pjrt/testing/fake_plugin.h"
#include "runtime/internal_ops.h"
#include "runtime/recording.h"

namespace flambeau::runtime {
namespace {

using pjrt::fake::FaultScope;
using pjrt::fake::live;

Engine& engine() { return Engine::start({.loaded = &pjrt::fake::fake_plugin()}); }

const ops::Row& row(std::string_view name) { return *ops::find_row(name); }

// A float32 tensor with a storage of its own.
struct Tensor {
  std::shared_ptr<Storage> storage;
  Dims dims;
  explicit Tensor(Dims d) : storage(Storage::create(Type{DType::F32, d}.bytes())), dims(std::move(d)) {
    std::vector<float> values(static_cast<size_t>(Type{DType::F32, dims}.elements()), 1);
    engine().upload(ref(), values.data());
  }
  TensorRef ref() const { return {storage.get(), View::contiguous(dims), DType::F32}; }
  std::vector<float> values() const {
    std::vector<float> out(static_cast<size_t>(Type{DType::F32, dims}.elements()), -1);
    engine().download(ref(), out.data());
    return out;
  }
};

NumberRef number(double value) { return {ops::Number{value}, false, std::nullopt}; }

std::vector<Engine::Output> add(const Tensor& x, double alpha, const Tensor* into = nullptr) {
  CallArgument arguments[] = {x.ref(), x.ref(), number(alpha)};
  std::optional<TensorRef> targets[] = {into ? std::optional(into->ref()) : std::nullopt};
  return engine().call(row("aten::add.Tensor"), arguments, targets);
}

void expect_error(const std::function<void()>& f, const std::string& part) {
  EXPECT_THAT(f, testing::ThrowsMessage<Error>(testing::HasSubstr(part)));
}

int64_t compiled() { return engine().counters().programs_compiled; }

TEST(Engine, NumbersAreInputsOfTheProgram) {
  Tensor x({7});
  add(x, 0.25);
  int64_t before = compiled();
  add(x, 0.5);
  add(x, 1e30);
  EXPECT_EQ(compiled(), before);
  add(x, 1);  // common numbers may be part of it
  EXPECT_EQ(compiled(), before + 1);
  Tensor y({8});
  add(y, 0.5);  // another shape
  EXPECT_EQ(compiled(), before + 2);
}

TEST(Engine, AFailedCompilationIsTriedAgain) {
  Tensor x({11});
  {
    FaultScope faults({.compile = {.text = "no room for the program"}});
    expect_error([&] { add(x, 0.5); }, "no room for the program");
    expect_error([&] { add(x, 0.5); }, "no room for the program");
  }
  EXPECT_TRUE(add(x, 0.5)[0].storage);
  EXPECT_EQ(x.values()[0], 1);
}

TEST(Engine, AFailedLaunchIsRaisedAndChangesNothing) {
  Tensor x({12}), target({12});
  {
    FaultScope faults({.execute = {.text = "the device is on fire"}});
    expect_error([&] { add(x, 0.5, &target); }, "on fire");
  }
  EXPECT_EQ(x.values()[0], 1);
  EXPECT_EQ(target.values()[0], 1);
  add(x, 0.5, &target);
  EXPECT_EQ(target.values()[0], 0);
}

TEST(Engine, AFailureAfterTheLaunchIsRaisedByTheWait) {
  Tensor x({13});
  add(x, 0.5);
  {
    FaultScope faults({.execute_late = {.text = "a late failure"}});
    auto outputs = add(x, 0.5);
    expect_error([&] { engine().synchronize(); }, "a late failure");
    std::vector<float> values(13);
    TensorRef ref{outputs[0].storage.get(), View::contiguous({13}), DType::F32};
    expect_error([&] { engine().download(ref, values.data()); }, "a late failure");
  }
  engine().synchronize();
}

TEST(Engine, FailedTransfersLeaveWhatWasThere) {
  Tensor x({14});
  std::vector<float> twos(14, 2);
  {
    FaultScope faults({.upload = {.text = "no upload"}, .download = {.text = "no download"}});
    expect_error([&] { engine().upload(x.ref(), twos.data()); }, "no upload");
    expect_error([&] { x.values(); }, "no download");
  }
  EXPECT_EQ(x.values()[0], 1);
}

TEST(Engine, TwoRequestsForOneProgramCompileItOnce) {
  Tensor x({15});
  int64_t before = compiled();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { add(x, 0.5); });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(compiled(), before + 1);
}

TEST(Engine, ABufferThatOthersHoldIsNotDonated) {
  Tensor x({16}), y({16});
  add(x, 0.5, &x);
  std::weak_ptr<const Array> old = x.storage->value;
  add(x, 0.5, &x);
  EXPECT_TRUE(old.expired());  // donated, and gone
  std::shared_ptr<const Array> held = x.storage->value;
  add(x, 0.5, &x);
  EXPECT_FALSE(held->deleted());
}

TEST(Engine, NothingLeaks) {
  engine().synchronize();
  pjrt::fake::Live before = live();
  {
    Tensor x({17}), y({17});
    add(x, 0.5, &y);
    before.executables = live().executables;  // programs stay
    for (int i = 0; i < 50; ++i) add(x, 0.5 + i, &y);
    FaultScope faults({.execute = {.text = "failure"}});
    for (int i = 0; i < 5; ++i) expect_error([&] { add(x, 0.5, &y); }, "failure");
  }
  engine().synchronize();
  EXPECT_EQ(live().buffers, before.buffers);
  EXPECT_EQ(live().events, before.events);
  EXPECT_EQ(live().errors, before.errors);
}

TEST(Recording, LeavesEverythingAsItWasUnlessFinished) {
  Tensor x({18});
  {
    Recording recording("abandoned");
    add(x, 0.5, &x);
    expect_error([&] { Recording inner("inner"); }, "while another step is recorded");
    expect_error([&] { x.values(); }, "read on the host");
  }
  EXPECT_EQ(x.values()[0], 1);
}

class NoRandom : public RandomSource {
  RandomPosition advance(uint64_t) override { return {}; }
};

TEST(Recording, AFailedStepKeepsTheStateThatWasNotDonated) {
  Tensor x({19}), untouched({19});
  std::unique_ptr<StepProgram> step;
  {
    Recording recording("step");
    add(x, 0.5, &x);
    TensorRef results[] = {untouched.ref()};
    step = recording.finish(results);
  }
  NoRandom random;
  {
    FaultScope faults({.compile = {.text = "no room"}});
    expect_error([&] { step->run({}, random); }, "no room");
  }
  EXPECT_EQ(x.values()[0], 1);
  {
    FaultScope faults({.execute = {.text = "lost"}});
    expect_error([&] { step->run({}, random); }, "lost");
  }
  EXPECT_EQ(untouched.values()[0], 1);
  EXPECT_EQ(step->run({}, random).size(), 1u);
  EXPECT_EQ(x.values()[0], 0);  // what the fake computes
}

TEST(Engine, GivesTheCompilerTheOptionsThatItIsAskedFor) {
  Tensor x({23});
  add(x, 1);
  const int64_t before = compiled();
  engine().set_compile_options({{"xla_asked_for", int64_t{3}}});
  {
    // The fake names no option unless the compilation holds it.
    FaultScope faults({.unknown_option = "xla_asked_for"});
    expect_error([&] { add(x, 1); }, "got xla_asked_for; correct it in compile.options");
  }
  add(x, 1);
  add(x, 1);
  EXPECT_EQ(compiled(), before + 1);  // another program than without it
  engine().set_compile_options({{"xla_asked_for", int64_t{4}}});
  add(x, 1);
  EXPECT_EQ(compiled(), before + 2);
  engine().set_compile_options({});
  add(x, 1);
  EXPECT_EQ(compiled(), before + 2);
}

TEST(Trace, ComparesRecordings) {
  Tensor x({20}), y({20});
  auto record = [&](const Tensor& t, double alpha, int times) {
    Recording recording("compared");
    for (int i = 0; i < times; ++i) add(t, alpha);
    return recording.finish({});
  };
  auto first = record(x, 0.5, 2);
  EXPECT_EQ(difference(first->trace(), record(x, 0.5, 2)->trace()), std::nullopt);
  EXPECT_THAT(*difference(first->trace(), record(x, 0.75, 2)->trace()), testing::HasSubstr("was 0.5 and became 0.75"));
  EXPECT_THAT(*difference(first->trace(), record(x, 0.5, 3)->trace()), testing::HasSubstr("2 ops and the other 3"));
  EXPECT_THAT(*difference(first->trace(), record(y, 0.5, 2)->trace()), testing::HasSubstr("another one"));
}

}  // namespace
}  // namespace flambeau::runtime
