// What tests share: both CPU plugins, TPU's compiler, and arrays in and out.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "pjrt/pjrt.h"

namespace flambeau::pjrt {

// A test that runs on each CPU plugin. The default one must be installed (tests fail without it); so must the oldest.
class CpuPlugins : public testing::TestWithParam<std::string> {
 protected:
  const Plugin& plugin() const { return Plugin::load(find_plugin(GetParam())); }
  std::shared_ptr<const Client> client(int64_t devices = 1) const {
    return Client::create(plugin(), {{"cpu_device_count", devices}});
  }
};

#define FLAMBEAU_ON_CPU_PLUGINS(Suite)                                                               \
  INSTANTIATE_TEST_SUITE_P(Plugins, Suite, testing::Values("cpu", "xla-cpu"), [](const auto& info) { \
    return info.param == "cpu" ? std::string("cpu") : std::string("oldest");                         \
  })

// A test that needs TPU's compiler, and is skipped where that is not installed.
class LibtpuTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      libtpu_ = find_plugin("tpu");
    } catch (const InvalidArgument& missing) {
      GTEST_SKIP() << "NOT TESTED, libtpu is not installed: " << missing.what();
    }
  }

  std::filesystem::path libtpu_;
};

// A fresh folder that goes away.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "flambeau_pjrt_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::filesystem::path add(const std::filesystem::path& file, std::string_view content = {}) const {
    std::filesystem::create_directories((path / file).parent_path());
    std::ofstream(path / file) << content;
    return path / file;
  }
  std::filesystem::path path;
};

inline std::unique_ptr<Buffer> upload(const Client& client, const std::vector<float>& values, std::vector<int64_t> dims,
                                      size_t device = 0) {
  return client.upload({.data = values.data(), .dtype = DType::F32, .dims = dims}, client.addressable_devices().at(device));
}

template <class T = float>
std::vector<T> download(const Buffer& buffer) {
  EXPECT_EQ(buffer.byte_size(), buffer.element_count() * static_cast<int64_t>(sizeof(T)));
  std::vector<T> values(static_cast<size_t>(buffer.element_count()));
  buffer.to_host(values.data());
  return values;
}

// The text of the E that `action` raises; a failure of the test when it raises none or another.
template <class E, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "raised something else: " << error.what();
    return {};
  }
  ADD_FAILURE() << "raised nothing";
  return {};
}

inline std::string module(const std::string& body) { return "module @m {\n" + body + "\n}\n"; }

}  // namespace flambeau::pjrt
