#include "data/source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>

#include "base/error.h"

namespace flambeau::data {
namespace {

namespace fs = std::filesystem;

class Source : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("flambeau_source_test_" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const fs::path& name, std::string_view text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << text;
  }

  std::vector<std::string> names(const std::vector<std::string>& patterns = {}) {
    std::vector<std::string> result;
    for (const Document& document : read_documents({root_.string()}, {.patterns = patterns})) result.push_back(document.name);
    return result;
  }

  // What reading raises; empty when nothing.
  std::string refusal(const std::vector<std::string>& sources, const SourceOptions& options = {}) {
    try {
      read_documents(sources, options);
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  fs::path root_;
};

using Names = std::vector<std::string>;

TEST_F(Source, FoldersAreReadInOrderOfNames) {
  put("b.txt", "B");
  put("a/z.py", "Z");
  put("a/deep/er/x.txt", "X");
  put("a.txt", "A");
  put("a/empty.txt", "");
  put(".git/config.txt", "no");
  put("a/.hidden.txt", "no");
  EXPECT_EQ(names(), (Names{"a.txt", "a/deep/er/x.txt", "a/z.py", "b.txt"}));
  EXPECT_EQ(names({"*.txt"}), (Names{"a.txt", "a/deep/er/x.txt", "b.txt"}));
  EXPECT_EQ(names({"*.py", "b.*"}), (Names{"a/z.py", "b.txt"}));
  EXPECT_EQ(names({"[ab].txt"}), (Names{"a.txt", "b.txt"}));
}

TEST_F(Source, FilesCountWhateverTheirNameAndSourcesKeepTheirOrder) {
  put("notes", "N");
  put("folder/a.txt", "A");
  auto documents = read_documents({(root_ / "notes").string(), (root_ / "folder").string()}, {.patterns = {"*.txt"}});
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0].name, "notes");
  EXPECT_EQ(documents[0].text, "N");
  EXPECT_EQ(documents[1].name, "a.txt");
}

TEST_F(Source, BytesArePassedOnAsTheyAre) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  put("bytes.txt", bytes + "\xff\xfe\xc3");
  EXPECT_EQ(read_documents({root_.string()})[0].text, bytes + "\xff\xfe\xc3");
}

TEST_F(Source, LinksAndPipesDoNoHarm) {
  put("a.txt", "A");
  put("sub/b.txt", "B");
  fs::create_directory_symlink(root_, root_ / "sub" / "loop");
  fs::create_symlink(root_ / "nowhere", root_ / "dangling.txt");
  fs::create_symlink(root_ / "dangling2.txt", root_ / "dangling2.txt");
  fs::create_symlink(root_ / "a.txt", root_ / "link.txt");
  ASSERT_EQ(mkfifo((root_ / "pipe.txt").c_str(), 0600), 0);  // opened for reading, it would block for ever
  EXPECT_EQ(names(), (Names{"a.txt", "link.txt", "sub/b.txt"}));
  EXPECT_NE(refusal({(root_ / "pipe.txt").string()}).find("pipe.txt': neither"), std::string::npos);
}

TEST_F(Source, RefusalsNameThePath) {
  put("empty.txt", "");
  put("full.txt", "12345678");
  put("others/a.md", "A");
  put("others/void.txt", "");
  std::string empty = (root_ / "empty.txt").string(), full = (root_ / "full.txt").string();
  std::string others = (root_ / "others").string(), missing = (root_ / "missing").string();
  struct {
    std::vector<std::string> sources;
    SourceOptions options;
    std::vector<std::string> parts;  // of the message
  } cases[] = {
      {{}, {}, {"at least one source", "stdlib:"}},
      {{missing}, {}, {missing, "No such file"}},
      {{full + "/below"}, {}, {full + "/below"}},
      {{std::string(10'000, 'x')}, {}, {"File name too long"}},
      {{empty}, {}, {empty, "empty file"}},
      {{full, empty}, {}, {empty}},
      {{others}, {.patterns = {"*.py"}}, {others, "*.py"}},
      {{others}, {.patterns = {"*.txt"}}, {others, "*.txt"}},
      {{full}, {.max_file_bytes = 7}, {full, "at most 7 bytes", "got 8"}},
      {{full, others}, {.max_total_bytes = 8}, {"a.md", "at most 8 bytes"}},
      {{"/dev/zero"}, {}, {"/dev/zero", "neither"}},
      {{"stdlib:x"}, {}, {"stdlib:x"}},
  };
  for (const auto& c : cases) {
    std::string message = refusal(c.sources, c.options);
    for (const std::string& part : c.parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
  if (geteuid() != 0) {  // root may read everything
    fs::permissions(root_ / "others", fs::perms::none);
    EXPECT_NE(refusal({others}).find(others), std::string::npos);
    fs::permissions(root_ / "others", fs::perms::owner_all);
  }
}

TEST_F(Source, TheStandardLibraryIsFound) {
  fs::path folder = python_stdlib();
  EXPECT_TRUE(fs::exists(folder / "os.py")) << folder;
  auto documents = read_documents({"stdlib:"});
  EXPECT_GT(documents.size(), 300u);
  EXPECT_TRUE(std::is_sorted(documents.begin(), documents.end(), [](auto& a, auto& b) { return a.name < b.name; }));
  for (const Document& document : documents) {
    EXPECT_TRUE(document.name.ends_with(".py")) << document.name;
    EXPECT_EQ(document.name.find("-packages/"), std::string::npos) << document.name;
  }
}

}  // namespace
}  // namespace flambeau::data
