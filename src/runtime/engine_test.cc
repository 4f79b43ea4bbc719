// The engine on a plugin that fails when told to: every failure is an exception that names it, nothing is lost, nothing leaks.
// The fake plugin computes nothing (every output is zeros), which is enough to see what is compiled, launched, kept and raised.
#include "runtime/engine.h"

#include <chrono>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pjrt/testing/fake_plugin.h"
#include "runtime/difference.h"
#include "runtime/internal_ops.h"
#include "runtime/recording.h"

namespace flambeau::runtime {
namespace {

using pjrt::fake::donated;
using pjrt::fake::FaultScope;
using pjrt::fake::live;

Engine& engine() { return Engine::start({.loaded = &pjrt::fake::fake_plugin()}); }

const ops::Row& row(std::string_view name) { return *ops::find_row(name); }

// A float32 tensor with a storage of its own.
struct Tensor {
  std::shared_ptr<Storage> storage;
  Dims dims;
  explicit Tensor(Dims d, float value = 1) : storage(Storage::create(Type{DType::F32, d}.bytes())), dims(std::move(d)) {
    std::vector<float> values(static_cast<size_t>(Type{DType::F32, dims}.elements()), value);
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

class NoRandom : public RandomSource {
  RandomPosition advance(uint64_t) override { return {}; }
};

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

// ---- donation -------------------------------------------------------------------------------------------------------------

TEST(Donation, GivesAwayWhatNobodyElseHolds) {
  Tensor x({16});
  const int64_t before = donated();
  add(x, 0.5, &x);
  EXPECT_EQ(donated(), before + 1);
  const std::shared_ptr<const Array> held = x.storage->held().array;
  add(x, 0.5, &x);
  EXPECT_EQ(donated(), before + 1);
  EXPECT_FALSE(held->deleted());
  add(x, 0.5, &x);
  EXPECT_EQ(donated(), before + 2);
}

TEST(Donation, AStepGivesItsStateAndNotItsInputs) {
  Tensor state({21}), input({21});
  std::unique_ptr<StepProgram> step;
  {
    Recording recording("accumulate");
    const auto placeholder = recording.add_input(input.ref().type());
    CallArgument arguments[] = {state.ref(), TensorRef{placeholder.get(), View::contiguous(input.dims), DType::F32}, number(1)};
    std::optional<TensorRef> into[] = {state.ref()};
    engine().call(row("aten::add.Tensor"), arguments, into);
    step = recording.finish({});
  }
  NoRandom random;
  const TensorRef inputs[] = {input.ref()}, both[] = {state.ref()};
  const int64_t before = donated();
  step->run(inputs, random);
  EXPECT_EQ(donated(), before + 1);
  EXPECT_EQ(input.values()[0], 1);
  step->run(both, random);  // the state is an input, too
  EXPECT_EQ(donated(), before + 1);
  EXPECT_EQ(state.values()[0], 0);
}

// A launch that has been decided upon and not made yet, as another thread sees it.
TEST(Donation, NobodySeesWhatIsGivenAway) {
  Tensor x({22});
  const Type type = x.ref().type();
  for (const bool fails : {true, false}) {
    std::vector<std::shared_ptr<const Array>> externals = {x.storage->held().array};
    const Handover::Offer offers[] = {{x.storage, &externals[0]}};
    Handover handover;
    ASSERT_THAT(handover.offer(offers), testing::ElementsAre(true));
    auto reader = std::async(std::launch::async, [&] { return x.values()[0]; });
    EXPECT_EQ(reader.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    if (fails) {
      handover.fail("a failed launch");
      EXPECT_EQ(reader.get(), 1);  // what it gave came back
      EXPECT_EQ(x.storage->held().array, externals[0]);
    } else {
      const Assignment next[] = {{x.storage, type, Tensor({22}, 2).storage->held().array}};
      handover.commit(next);
      EXPECT_EQ(reader.get(), 2);
    }
  }
}

TEST(Donation, OnlyWhatALaunchConsumedIsLostWithIt) {
  Tensor x({24}), target({24}), shared({24});
  const std::shared_ptr<const Array> held = shared.storage->held().array;
  {
    FaultScope faults({.execute_spent = {.text = "spent"}});
    for (const Tensor* t : {&target, &shared}) expect_error([&] { add(*t, 0.5, t); }, "spent");
  }
  EXPECT_EQ(x.values()[0], 1);
  EXPECT_EQ(shared.values()[0], 1);
  expect_error([&] { target.values(); }, "spent");
  engine().upload(target.ref(), x.values().data());  // a new value ends the failure
  EXPECT_EQ(target.values()[0], 1);
}

// ---- failures after the launch ----------------------------------------------------------------------------------------------

// A launch with a check, whose flags the fake sets or not.
std::vector<Engine::Output> select(const Tensor& x, bool fails) {
  static const auto index = [] {
    auto storage = Storage::create(8);
    const int64_t zero = 0;
    engine().upload({storage.get(), View::contiguous({1}), DType::S64}, &zero);
    return storage;
  }();
  FaultScope faults({.true_flags = fails});
  CallArgument arguments[] = {x.ref(), int64_t{0}, TensorRef{index.get(), View::contiguous({1}), DType::S64}};
  return engine().call(row("aten::index_select"), arguments);
}

std::vector<float> values(const Engine::Output& output) {
  std::vector<float> out(static_cast<size_t>(output.type->elements()), -1);
  engine().download({output.storage.get(), View::contiguous(output.type->dims), DType::F32}, out.data());
  return out;
}

constexpr const char* kOutOfRange = "index out of range";

TEST(Failures, OfACheckAreNotRaisedByOtherLaunches) {
  Tensor x({25}), y({26});
  engine().synchronize();
  const auto failed = select(x, true);
  for (int i = 0; i < 600; ++i) {  // more than are remembered unread
    EXPECT_TRUE(select(y, false)[0].storage);
    add(y, 0.5, &y);
  }
  EXPECT_EQ(y.values()[0], 0);
  EXPECT_EQ(x.values()[0], 1);
  expect_error([&] { engine().synchronize(); }, kOutOfRange);
  engine().synchronize();
  EXPECT_EQ(values(failed[0])[0], 0);
}

TEST(Failures, OfACheckAreRaisedByReadersOfWhatItConcerns) {
  Tensor x({27});
  const auto failed = select(x, true);
  CallArgument arguments[] = {TensorRef{failed[0].storage.get(), View::contiguous({1}), DType::F32}, x.ref(), number(1)};
  const auto sum = engine().call(row("aten::add.Tensor"), arguments);
  const auto passed = select(x, false);
  EXPECT_EQ(values(passed[0]).size(), 1u);
  expect_error([&] { values(sum[0]); }, kOutOfRange);
  EXPECT_EQ(values(sum[0])[0], 0);  // once
  engine().synchronize();
}

TEST(Failures, AreRaisedTogether) {
  Tensor x({28});
  engine().synchronize();
  for (int i = 0; i < 300; ++i) select(x, true);
  expect_error([&] { engine().synchronize(); }, "(and 299 more failures since the last wait)");
  engine().synchronize();
  {
    FaultScope faults({.execute_late = {.text = "a late failure"}});
    for (int i = 0; i < 3; ++i) add(x, 0.5);
  }
  select(x, true);
  EXPECT_THAT([&] { engine().synchronize(); },
              testing::ThrowsMessage<PluginError>(testing::AllOf(testing::HasSubstr("a late failure"), testing::HasSubstr("and 3 more"))));
  engine().synchronize();
}

TEST(Failures, AreRaisedWhenNothingIsInFlight) {
  Tensor x({29});
  engine().synchronize();
  const pjrt::fake::Live before = live();
  {
    FaultScope faults({.execute_late = {.text = "a late failure"}});
    add(x, 0.5);
  }
  pjrt::fake::LaunchesHeld held;
  add(x, 0.5);
  auto waiter = std::async(std::launch::async, [] { engine().synchronize(); });
  EXPECT_EQ(waiter.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  held.finish();
  expect_error([&] { waiter.get(); }, "a late failure");
  EXPECT_EQ(live().events, before.events);
}

TEST(Failures, OfAnOpAreRaisedByItselfInDebugMode) {
  Tensor x({30});
  engine().synchronize();
  select(x, true);  // whose failure is another call's
  engine().set_debug(true);
  EXPECT_TRUE(add(x, 0.5)[0].storage);
  EXPECT_TRUE(select(x, false)[0].storage);
  expect_error([&] { select(x, true); }, kOutOfRange);
  engine().set_debug(false);
  expect_error([&] { engine().synchronize(); }, kOutOfRange);
  engine().synchronize();
}

TEST(Resize, KeepsWhatFitsAndChangesNothingWhenItFails) {
  Tensor x({31});
  {
    FaultScope faults({.execute = {.text = "no room"}});
    expect_error([&] { engine().resize(*x.storage, 400); }, "no room");
  }
  {
    FaultScope faults({.compile = {.text = "no room"}});
    expect_error([&] { engine().resize(*x.storage, 500); }, "no room");
  }
  EXPECT_EQ(x.storage->nbytes(), 124);
  EXPECT_EQ(x.values()[30], 1);
  expect_error([&] { engine().resize(*x.storage, -1); }, "at least 0 bytes");
  engine().resize(*x.storage, 400);
  EXPECT_EQ(x.storage->nbytes(), 400);
  engine().resize(*x.storage, 0);
  EXPECT_EQ(x.storage->nbytes(), 0);
  EXPECT_FALSE(x.storage->held().array);
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
  engine().programs().set_compile_options({{"xla_asked_for", int64_t{3}}});
  {
    // The fake names no option unless the compilation holds it.
    FaultScope faults({.unknown_option = "xla_asked_for"});
    expect_error([&] { add(x, 1); }, "got xla_asked_for; correct it in compile.options");
  }
  add(x, 1);
  add(x, 1);
  EXPECT_EQ(compiled(), before + 1);  // another program than without it
  engine().programs().set_compile_options({{"xla_asked_for", int64_t{4}}});
  add(x, 1);
  EXPECT_EQ(compiled(), before + 2);
  engine().programs().set_compile_options({});
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
