// A test with a folder of its own.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace flambeau::train {

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string name = (std::filesystem::temp_directory_path() / "flambeau-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~FileTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

}  // namespace flambeau::train
